// ElementDifference: how the elements of one tensor differ from those of another of its type.
#pragma once

#include <ckpt/tensor.hpp>
#include <cstdint>
#include <span>

namespace ckpt::cli {

// Elements differ if their bytes do: so a NaN is the same as itself, and 0 is another than -0.
struct ElementDifference {
  std::uint64_t different = 0;
  std::uint64_t not_finite = 0;  // Those among them with an infinity or a NaN on some side.
  double largest = 0;            // Among the others; for complex numbers the distance.
};

// Adds what differs. Both have the same size, a multiple of the element's.
void add_difference(DType dtype, std::span<const std::byte> one, std::span<const std::byte> other,
                    ElementDifference& sum);

// The value of an element as a number. `bytes` has its size; it is not complex.
long double value_of(DType dtype, const std::byte* bytes);

}  // namespace ckpt::cli
