// RunChecksum: the CRC of many runs of bytes, one behind the other. Short runs are collected first:
// a checksum of its own for each row of some bytes would cost several times what its copy does.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/checksum.hpp"

namespace ckpt::gather {

class RunChecksum {
 public:
  void add(std::span<const std::byte> run);
  Crc32 value();

 private:
  // From this size on, a run's own checksum costs less than another copy.
  static constexpr std::size_t long_run_bytes = 512;

  void collect(std::span<const std::byte> run);

  Crc32 crc_ = 0;
  std::size_t collected_ = 0;
  std::array<std::byte, 8 * long_run_bytes> short_runs_;  // In the first-level cache.
};

}  // namespace ckpt::gather
