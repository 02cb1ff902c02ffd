#include "plan/region.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/assert.hpp"

namespace ckpt::plan {

namespace {

std::vector<std::uint64_t> row_major_strides(Shape shape) {
  std::vector<std::uint64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// The box of the elements [begin, end), which have all indices in common but those from `dimension`
// on, and fill whole rows behind it.
Box slab(Shape tensor, const std::vector<std::uint64_t>& strides, std::size_t dimension,
         std::uint64_t begin, std::uint64_t end) {
  Box box = whole(tensor);
  std::uint64_t rest = begin;
  for (std::size_t d = 0; d <= dimension; ++d) {
    box.offset[d] = rest / strides[d];
    box.shape[d] = 1;
    rest %= strides[d];
  }
  CKPT_ASSERT(rest == 0);
  box.shape[dimension] = (end - begin) / strides[dimension];
  return box;
}

// A range that begins or ends in the middle of a row takes the rest of the row first, then whole
// rows, and the beginning of another row last; each in the largest steps that fit.
std::vector<Box> boxes_of_range(const FlatRange& range, Shape tensor) {
  std::vector<Box> boxes;
  if (range.count == 0) return boxes;
  if (tensor.empty()) return {whole(tensor)};
  const std::vector<std::uint64_t> strides = row_major_strides(tensor);
  const std::uint64_t end = range.begin + range.count;
  std::uint64_t at = range.begin;
  // Upwards: to where a larger unit begins.
  for (std::size_t d = tensor.size(); d-- > 1 && at < end;) {
    const std::uint64_t unit = strides[d - 1];
    // No sum here passes the tensor's last element: with whole units it may be at 2^63.
    const std::uint64_t aligned = at % unit == 0 ? at : at - at % unit + unit;
    if (aligned == at || aligned > end) continue;
    boxes.push_back(slab(tensor, strides, d, at, aligned));
    at = aligned;
  }
  // Downwards: as many of the largest units as fit.
  for (std::size_t d = 0; d < tensor.size() && at < end; ++d) {
    const std::uint64_t filled = at + (end - at) / strides[d] * strides[d];
    if (filled == at) continue;
    boxes.push_back(slab(tensor, strides, d, at, filled));
    at = filled;
  }
  CKPT_ASSERT(at == end);
  return boxes;
}

}  // namespace

Box whole(Shape tensor) {
  return {std::vector<std::uint64_t>(tensor.size(), 0), {tensor.begin(), tensor.end()}};
}

std::uint64_t count_of(Shape shape) {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

std::uint64_t count_of(const Region& region) {
  if (const auto* range = std::get_if<FlatRange>(&region)) return range->count;
  return count_of(std::get<Box>(region).shape);
}

std::vector<Box> boxes_of(const Region& region, Shape tensor) {
  if (const auto* range = std::get_if<FlatRange>(&region)) return boxes_of_range(*range, tensor);
  const Box& box = std::get<Box>(region);
  if (count_of(box.shape) == 0) return {};
  return {box};
}

FlatRange span_of(const Box& box, Shape tensor) {
  CKPT_ASSERT(count_of(box.shape) > 0);
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  for (std::size_t d = 0; d < tensor.size(); ++d) {
    first = first * tensor[d] + box.offset[d];
    last = last * tensor[d] + box.end(d) - 1;
  }
  return {first, last - first + 1};
}

FlatRange span_of(const Region& region, Shape tensor) {
  if (const auto* range = std::get_if<FlatRange>(&region)) return *range;
  const Box& box = std::get<Box>(region);
  return count_of(box.shape) > 0 ? span_of(box, tensor) : FlatRange();
}

std::optional<Box> intersection(const Box& one, const Box& other) {
  CKPT_ASSERT(one.offset.size() == other.offset.size());
  Box both = one;
  for (std::size_t d = 0; d < one.offset.size(); ++d) {
    const std::uint64_t begin = std::max(one.offset[d], other.offset[d]);
    const std::uint64_t end = std::min(one.end(d), other.end(d));
    if (begin >= end) return std::nullopt;
    both.offset[d] = begin;
    both.shape[d] = end - begin;
  }
  return both;
}

bool overlap(const Region& one, const Region& other, Shape tensor) {
  const FlatRange first = span_of(one, tensor);
  const FlatRange second = span_of(other, tensor);
  const std::uint64_t begin = std::max(first.begin, second.begin);
  if (begin >= std::min(first.begin + first.count, second.begin + second.count)) return false;
  const bool are_ranges =
      std::holds_alternative<FlatRange>(one) && std::holds_alternative<FlatRange>(other);
  if (are_ranges) return true;
  const std::vector<Box> others = boxes_of(other, tensor);
  return std::ranges::any_of(boxes_of(one, tensor), [&](const Box& box) {
    return std::ranges::any_of(
        others, [&](const Box& each) { return intersection(box, each).has_value(); });
  });
}

void subtract(const Box& box, const Box& hole, std::vector<Box>& rest) {
  Box left = box;  // It shrinks to the hole, one dimension after the other.
  for (std::size_t d = 0; d < box.offset.size(); ++d) {
    CKPT_ASSERT(left.offset[d] <= hole.offset[d] && hole.end(d) <= left.end(d));
    if (left.offset[d] < hole.offset[d]) {
      Box before = left;
      before.shape[d] = hole.offset[d] - left.offset[d];
      rest.push_back(std::move(before));
    }
    if (hole.end(d) < left.end(d)) {
      Box behind = left;
      behind.offset[d] = hole.end(d);
      behind.shape[d] = left.end(d) - hole.end(d);
      rest.push_back(std::move(behind));
    }
    left.offset[d] = hole.offset[d];
    left.shape[d] = hole.shape[d];
  }
}

std::string describe(const Box& box, Shape tensor) {
  std::string text = "[";
  for (std::size_t d = 0; d < tensor.size(); ++d) {
    if (d > 0) text += ", ";
    const bool is_full = box.offset[d] == 0 && box.shape[d] == tensor[d];
    text += is_full ? ":" : fmt::format("{}:{}", box.offset[d], box.end(d));
  }
  return text + "]";
}

std::uint64_t Addresses::of(std::span<const std::uint64_t> index) const {
  CKPT_ASSERT(index.size() == strides.size());
  return std::inner_product(index.begin(), index.end(), strides.begin(), base);
}

Addresses addresses_of(const Region& region, Shape tensor, std::span<const std::uint8_t> order) {
  if (const auto* range = std::get_if<FlatRange>(&region)) {
    CKPT_ASSERT(order.empty());
    return {0 - range->begin, row_major_strides(tensor)};
  }
  const Box& box = std::get<Box>(region);
  CKPT_ASSERT(order.empty() || order.size() == box.shape.size());
  Addresses addresses{0, std::vector<std::uint64_t>(box.shape.size(), 1)};
  std::uint64_t stride = 1;
  for (std::size_t place = box.shape.size(); place-- > 0;) {
    const std::size_t d = order.empty() ? place : order[place];
    addresses.strides[d] = stride;
    stride *= box.shape[d];
  }
  addresses.base = 0 - addresses.of(box.offset);
  return addresses;
}

}  // namespace ckpt::plan
