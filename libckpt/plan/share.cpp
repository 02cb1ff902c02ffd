#include "plan/share.hpp"

#include <algorithm>
#include <cstring>

#include "base/assert.hpp"
#include "base/checksum.hpp"

namespace ckpt::plan {

namespace {

// Equal at all ranks, and different for the pieces of one rank: the copy that captures a medium
// piece, and the one that gets the longest stretch of a large one, are not always the same.
std::uint64_t spread(const CopiedPiece& piece) {
  std::vector<std::uint64_t> numbers;
  if (const auto* range = std::get_if<FlatRange>(&piece.region)) {
    numbers = {range->begin, range->count};
  } else {
    const Box& box = std::get<Box>(piece.region);
    numbers = box.offset;
    numbers.insert(numbers.end(), box.shape.begin(), box.shape.end());
  }
  std::vector<std::byte> bytes(numbers.size() * sizeof(std::uint64_t) + piece.name.size());
  std::byte* to = bytes.data();
  for (const std::uint64_t number : numbers) {
    std::memcpy(to, &number, sizeof number);
    to += sizeof number;
  }
  std::copy_n(reinterpret_cast<const std::byte*>(piece.name.data()), piece.name.size(), to);
  return digest_of(bytes).low;
}

Share stretch_of_range(const FlatRange& range, std::uint64_t element_bytes, std::uint64_t index,
                       std::uint64_t count) {
  const std::uint64_t step = stretch_align / element_bytes;
  const std::uint64_t begin = cut(range.count, index, count) / step * step;
  const std::uint64_t end =
      index + 1 == count ? range.count : cut(range.count, index + 1, count) / step * step;
  return {FlatRange{range.begin + begin, end - begin}, begin * element_bytes};
}

// The dimensions of memory that have more than one index, slowest first. The others may be
// anywhere.
std::vector<std::size_t> long_dimensions(const Box& box, std::span<const std::uint8_t> order) {
  std::vector<std::size_t> dimensions;
  for (std::size_t level = 0; level < box.shape.size(); ++level) {
    const std::size_t d = order.empty() ? level : order[level];
    if (box.shape[d] > 1) dimensions.push_back(d);
  }
  return dimensions;
}

// A dimension with fewer indices than copies gives each index to some of them, which cut the next
// dimension among themselves. Dimensions are taken as in row-major memory, whatever the own order:
// the others may have another one. A rank captures all of a piece in whose memory its stretch
// would have holes.
Share stretch_of_box(const Box& box, const CopiedPiece& piece, std::uint64_t index,
                     std::uint64_t count) {
  const std::vector<std::size_t> dimensions = long_dimensions(box, {});
  const std::vector<std::size_t> in_memory = long_dimensions(box, piece.order);
  Box stretch = box;
  std::uint64_t element = 0;  // In the piece, in the order of its memory.
  std::uint64_t elements = count_of(box.shape);
  for (std::size_t level = 0;; ++level) {
    CKPT_ASSERT(level < dimensions.size());  // A stretch has many elements.
    const std::size_t d = dimensions[level];
    if (in_memory[level] != d) return {box, 0};
    const std::uint64_t length = box.shape[d];
    const bool is_last = length >= count;
    const std::uint64_t begin = is_last ? cut(length, index, count) : index * length / count;
    const std::uint64_t end = is_last ? cut(length, index + 1, count) : begin + 1;
    elements /= length;
    element += begin * elements;
    stretch.offset[d] = box.offset[d] + begin;
    stretch.shape[d] = end - begin;
    if (is_last) return {std::move(stretch), element * size_of(piece.dtype)};
    const std::uint64_t first = (begin * count + length - 1) / length;
    const std::uint64_t behind = (end * count + length - 1) / length;
    index -= first;
    count = behind - first;
  }
}

}  // namespace

std::uint64_t CopiedPiece::bytes() const {
  return count_of(region) * size_of(dtype);
}

std::uint64_t small_limit(std::vector<std::uint64_t> bytes) {
  std::sort(bytes.begin(), bytes.end());
  std::uint64_t limit = 0;
  std::uint64_t sum = 0;
  // Pieces of one size are all small, or none is.
  for (auto begin = bytes.begin(); begin != bytes.end();) {
    const auto end = std::upper_bound(begin, bytes.end(), *begin);
    const std::uint64_t left = small_sum_max - sum;
    if (*begin != 0 && static_cast<std::uint64_t>(end - begin) > left / *begin) break;
    limit = *begin;
    sum += *begin * static_cast<std::uint64_t>(end - begin);
    begin = end;
  }
  return limit;
}

std::optional<Share> share_of(const CopiedPiece& piece, std::uint64_t small_limit) {
  CKPT_ASSERT(piece.copy < piece.copies);
  const std::uint64_t bytes = piece.bytes();
  if (piece.copies == 1 || bytes <= small_limit) return Share{piece.region, 0};
  const std::uint64_t index = (piece.copy + spread(piece) % piece.copies) % piece.copies;
  if (bytes / piece.copies < stretch_bytes_min) {
    if (index != 0) return std::nullopt;
    return Share{piece.region, 0};
  }
  if (const auto* range = std::get_if<FlatRange>(&piece.region))
    return stretch_of_range(*range, size_of(piece.dtype), index, piece.copies);
  return stretch_of_box(std::get<Box>(piece.region), piece, index, piece.copies);
}

}  // namespace ckpt::plan
