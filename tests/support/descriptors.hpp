// Descriptors: counts what this process has open, so that a test can require that nothing leaked.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace ckpt::test {

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

}  // namespace ckpt::test
