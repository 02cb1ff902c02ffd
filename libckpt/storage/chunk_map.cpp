#include "storage/chunk_map.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace ckpt::storage {

std::vector<FileSegment> segments_of(const format::Extent& chunk,
                                     std::span<const format::Extent> members) {
  std::vector<FileSegment> segments;
  std::uint64_t position = chunk.offset;
  const auto add_padding = [&](std::uint64_t end) {
    if (position < end)
      segments.push_back(FileSegment{{position, end - position}, std::nullopt, 0});
    position = std::max(position, end);
  };
  for (std::size_t index = 0; index < members.size(); ++index) {
    const std::uint64_t begin = std::max(chunk.offset, members[index].offset);
    const std::uint64_t end = std::min(chunk.end(), members[index].end());
    if (begin >= end) continue;
    add_padding(begin);
    segments.push_back(FileSegment{{begin, end - begin}, index, begin - members[index].offset});
    position = end;
  }
  add_padding(chunk.end());
  return segments;
}

std::vector<std::span<const std::byte>> pieces_at(std::span<const os::FileSpan> slot,
                                                  const format::Extent& range) {
  std::vector<std::span<const std::byte>> pieces;
  std::uint64_t start = 0;
  for (const os::FileSpan& span : slot) {
    const std::uint64_t begin = std::max(range.offset, start);
    const std::uint64_t end = std::min<std::uint64_t>(range.end(), start + span.bytes.size());
    if (begin < end) pieces.push_back(span.bytes.subspan(begin - start, end - begin));
    start += span.bytes.size();
  }
  CKPT_ASSERT(range.end() <= start);
  return pieces;
}

std::uint64_t bytes_of(std::span<const os::FileSpan> slot) {
  std::uint64_t bytes = 0;
  for (const os::FileSpan& span : slot) bytes += span.bytes.size();
  return bytes;
}

}  // namespace ckpt::storage
