// BytePlanes: the bytes of numbers, sorted by their place in the number: all first bytes, then all
// second ones, and so on.
//
// The bytes that hold signs and exponents resemble one another, and those of the mantissas do not
// resemble anything. Apart from each other the former shrink well. Bytes behind the last whole
// number stay behind the planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt::storage {

// `width` is 1, 2, 4 or 8. Source and target have the same size, and do not overlap.
void split_planes(std::span<const std::byte> source, std::uint8_t width,
                  std::span<std::byte> target);
void join_planes(std::span<const std::byte> source, std::uint8_t width,
                 std::span<std::byte> target);

}  // namespace ckpt::storage
