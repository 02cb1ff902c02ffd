// LayoutTypes: what a Layout says: where every tensor of one rank lies in its Slot. The Slot is the
// files, one after another.
//
// Members follow one another, each starting at a multiple of 4 KiB. The first is the safetensors
// file with all tensors outside of archives. The torch archives come next. A raw file of the blobs,
// if there are any, is last.
#pragma once

#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/extent.hpp"
#include "format/piece.hpp"

namespace ckpt::format {

// The most that all tensors take in the rank's part, on storage.
inline constexpr std::uint64_t tensor_list_bytes_max = 256u << 20;
inline constexpr std::size_t tensors_max = 2'000'000;  // Most reach the header's 100 MB first.
inline constexpr std::size_t name_bytes_max = 4096;
inline constexpr std::size_t job_bytes_max = 128;
inline constexpr std::size_t members_max = 16;
inline constexpr std::uint64_t slot_bytes_max = std::uint64_t{1} << 60;  // Sums of two never wrap.

enum class MemberKind : std::uint8_t { safetensors = 1, torch = 2, raw = 3 };
// "safetensors", "torch", "raw".
std::string_view name_of(MemberKind kind);
std::optional<MemberKind> kind_from(std::string_view name);

struct Member {
  std::string file_name;  // "rank-00000.safetensors"; built from integers only.
  MemberKind kind = MemberKind::raw;
  Extent extent;                   // In the Slot. For blobs, `bytes` is the capacity.
  std::uint64_t header_bytes = 0;  // The safetensors header: 8 + JSON + padding to 4 KiB.
  bool operator==(const Member&) const = default;
};

struct TensorPlace {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape;
  Extent extent;  // In the Slot. Zero bytes for zero-size tensors.
  std::uint32_t member = 0;
  std::string alias_of;        // Tied: the name that holds the bytes, and whose `extent` this is.
  std::optional<Piece> piece;  // Where it lies in the global tensor; none: it is the whole one.
  bool operator==(const TensorPlace&) const = default;
};

struct Layout {
  std::vector<Member> members;
  std::vector<TensorPlace> tensors;  // In file order; aliases follow the tensors they name.
  std::uint64_t blob_capacity = 0;
  std::uint64_t slot_bytes = 0;  // A Slot's size: all members, padded to 4 KiB.
  std::uint32_t version = 1;     // Grows with each change in one session.
  bool has_archives() const;
  bool operator==(const Layout&) const = default;
};

// The index of the member that holds the blobs, if there is one. It is always last.
std::optional<std::size_t> blob_member(const Layout& layout);
// The size of the part of the Slot that is written, sent and checksummed when `blob_bytes` of blobs
// are in use: all members with their padding, up to a multiple of 4 KiB.
std::uint64_t covered_bytes(const Layout& layout, std::uint64_t blob_bytes);
// The size of a contiguous tensor; nothing if a dimension is negative or the product overflows.
std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape);

}  // namespace ckpt::format
