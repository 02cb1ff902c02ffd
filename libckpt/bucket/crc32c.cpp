#include "bucket/crc32c.hpp"

#include <isa-l/crc.h>

#include <algorithm>

namespace ckpt::bucket {

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  constexpr std::size_t piece_bytes_max = 1u << 30;  // The library counts in an int.
  std::uint32_t crc = ~before;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), piece_bytes_max));
    // It only reads, although it does not say so.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(piece.data()));
    crc = crc32_iscsi(data, static_cast<int>(piece.size()), crc);
    bytes = bytes.subspan(piece.size());
  }
  return ~crc;
}

}  // namespace ckpt::bucket
