// ChunkMap: which bytes of which files a Chunk of the Slot holds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "format/shard_record.hpp"
#include "os/file_span.hpp"

namespace ckpt::storage {

// Segment: a part of one Chunk that lies in one file, or in the padding behind one.
struct Segment {
  format::Extent extent;              // In the Slot; never empty.
  std::optional<std::size_t> member;  // None: padding.
  std::uint64_t file_offset = 0;
  bool operator==(const Segment&) const = default;
};

// In the order of the Slot, without a gap; `members` are member_extents(record).
std::vector<Segment> segments_of(const format::Extent& chunk,
                                 std::span<const format::Extent> members);

// A range of a Slot whose memory comes in several pieces, as the pieces of it.
std::vector<std::span<const std::byte>> pieces_at(std::span<const os::FileSpan> slot,
                                                  const format::Extent& range);
std::uint64_t bytes_of(std::span<const os::FileSpan> slot);

}  // namespace ckpt::storage
