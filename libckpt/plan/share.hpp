// Share: the part of a piece that one of its copies captures.
//
// Ranks that hold the same piece divide its bytes. Each rank decides by the piece, the number of
// its copies and its own number among them, and needs nothing of the others. So all ranks come to
// the same division, at every step, and a rank that differs can capture too much but leaves no gap.
//
//   small pieces     every copy captures all of it: reading one's own costs nothing
//   medium pieces    one copy captures all of it, by a hash of its name and region
//   large pieces     each copy captures a stretch, cut along the first dimensions. All of the
//   piece,
//                    where these are not the slowest ones in its memory: the others may have the
//                    same elements in another order
#pragma once

#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "plan/region.hpp"

namespace ckpt::plan {

// The copies of all pieces up to some size, together not more than this, are captured by every
// rank.
inline constexpr std::uint64_t small_sum_max = std::uint64_t{1} << 20;
// A piece is cut when each copy gets at least this much of it.
inline constexpr std::uint64_t stretch_bytes_min = std::uint64_t{16} << 10;
// Stretches of a flat range begin at multiples of a page, counted from its begin.
inline constexpr std::uint64_t stretch_align = 4096;

struct CopiedPiece {
  std::string_view name;
  DType dtype = DType::u8;
  const Region& region;
  std::span<const std::uint8_t> order;  // A box's dimensions, slowest first; empty: row-major.
  std::uint32_t copy = 0;               // The own number, less than `copies`.
  std::uint32_t copies = 1;
  std::uint64_t bytes() const;
};

struct Share {
  Region region;
  std::uint64_t offset = 0;  // Where it begins in the piece, in bytes; it ends without a hole.
};

// Returns the size up to which a rank captures all of a piece, whatever its copies do. `bytes` has
// the sizes of the rank's pieces that have copies.
std::uint64_t small_limit(std::vector<std::uint64_t> bytes);

// Nothing: other copies capture the piece. `region` lies inside its tensor.
std::optional<Share> share_of(const CopiedPiece& piece, std::uint64_t small_limit);

}  // namespace ckpt::plan
