// Units: sizes by name, and the two roundings that everyone needs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckpt {

inline constexpr std::uint64_t KiB = 1024;
inline constexpr std::uint64_t MiB = 1024 * KiB;
inline constexpr std::uint64_t GiB = 1024 * MiB;
inline constexpr std::uint64_t TiB = 1024 * GiB;

inline constexpr std::uint64_t page_bytes = 4 * KiB;
inline constexpr std::uint64_t default_chunk_bytes = 4 * MiB;  // A Chunk: see docs/format.md.

constexpr std::uint64_t div_ceil(std::uint64_t value, std::uint64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return div_ceil(value, alignment) * alignment;
}

}  // namespace ckpt
