// FileSpan: mapped bytes that also lie in a file, so that the kernel can send them without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt::os {

struct FileSpan {
  std::span<const std::byte> bytes;
  int fd = -1;               // -1: only in memory.
  std::uint64_t offset = 0;  // Where `bytes` begin in the file.
};

}  // namespace ckpt::os
