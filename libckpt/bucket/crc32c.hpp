// Crc32c: Castagnoli's checksum, which Google's servers compare; Chunks have another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt::bucket {

// `before` is the checksum of what comes before these bytes.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace ckpt::bucket
