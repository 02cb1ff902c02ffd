// copy_run: copies a run of bytes, of which a Chunk may have a million.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace ckpt::gather {

// For single elements a call of memcpy takes several times as long as the copy.
inline void copy_run(std::span<std::byte> target, const std::byte* from) {
  switch (target.size()) {
    case 0:
      return;
    case 2:
      std::memcpy(target.data(), from, 2);
      return;
    case 4:
      std::memcpy(target.data(), from, 4);
      return;
    case 8:
      std::memcpy(target.data(), from, 8);
      return;
    default:
      std::memcpy(target.data(), from, target.size());
  }
}

}  // namespace ckpt::gather
