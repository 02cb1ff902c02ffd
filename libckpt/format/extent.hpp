// Extent: a range of bytes, in the Slot unless stated otherwise.
#pragma once

#include <cstdint>

namespace ckpt::format {

struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t end() const { return offset + bytes; }
  bool operator==(const Extent&) const = default;
};

}  // namespace ckpt::format
