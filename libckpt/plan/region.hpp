// Region: the algorithms on regions of a tensor (ckpt/piece.hpp).
#pragma once

#include <ckpt/piece.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ckpt::plan {

using Shape = std::span<const std::uint64_t>;

Box whole(Shape tensor);
// The number of elements. The shape of a tensor that exists never overflows.
std::uint64_t count_of(Shape shape);
std::uint64_t count_of(const Region& region);

// The first of `total` that belongs to part `index` of `count` equal ones.
constexpr std::uint64_t cut(std::uint64_t total, std::uint64_t index, std::uint64_t count) {
  return total / count * index + total % count * index / count;  // total * index may not fit.
}

// The same elements as boxes without a common element, in flattened order. At most two for each
// dimension; none of them is empty.
std::vector<Box> boxes_of(const Region& region, Shape tensor);

// Returns the flat range from the first to the last element of a box that is not empty.
FlatRange span_of(const Box& box, Shape tensor);
// The same of any region; one without elements has an empty one.
FlatRange span_of(const Region& region, Shape tensor);

// Returns the common elements; nothing if there are none.
std::optional<Box> intersection(const Box& one, const Box& other);
// Returns true if both have some element.
bool overlap(const Region& one, const Region& other, Shape tensor);
// Appends the rest of `box` without `hole`, which lies inside it.
void subtract(const Box& box, const Box& hole, std::vector<Box>& rest);

// As an index in Python, "[512:1024, :]", for errors.
std::string describe(const Box& box, Shape tensor);

// Addresses: where an element of a region lies, counted in elements from the region's first byte.
// The address of an element is the sum of its indices, each times the stride of its dimension, plus
// the base. This sum may wrap on the way, but not in the end.
struct Addresses {
  std::uint64_t base = 0;
  std::vector<std::uint64_t> strides;
  std::uint64_t of(std::span<const std::uint64_t> index) const;
};
// `order` names the dimensions of a box from the slowest to the fastest in memory; empty:
// row-major.
Addresses addresses_of(const Region& region, Shape tensor, std::span<const std::uint8_t> order);

}  // namespace ckpt::plan
