// RandomBytes: bytes that follow from a seed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/random.hpp"

namespace ckpt::test {

inline std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed = 1) {
  Random random(seed);
  std::vector<std::byte> bytes(count);
  for (std::size_t at = 0; at < count; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), count - at));
  }
  return bytes;
}

}  // namespace ckpt::test
