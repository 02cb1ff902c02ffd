// ChunkMap: maps a Chunk of the Slot to the byte ranges of files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "format/shard_record.hpp"
#include "os/file_span.hpp"

namespace ckpt::storage {

// FileSegment: a part of one Chunk that lies in one file, or in the padding behind one.
struct FileSegment {
  format::Extent extent;              // In the Slot; never empty.
  std::optional<std::size_t> member;  // None: padding.
  std::uint64_t file_offset = 0;
  bool operator==(const FileSegment&) const = default;
};

// Segments in the order of the Slot, without a gap; `members` are member_extents(record).
std::vector<FileSegment> segments_of(const format::Extent& chunk,
                                     std::span<const format::Extent> members);

// Splits a range of a Slot whose memory consists of several pieces into spans of them.
std::vector<std::span<const std::byte>> pieces_at(std::span<const os::FileSpan> slot,
                                                  const format::Extent& range);
std::uint64_t bytes_of(std::span<const os::FileSpan> slot);

}  // namespace ckpt::storage
