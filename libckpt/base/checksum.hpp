// Checksum: CRC-32 (IEEE, the one that zip uses) and the 128-bit digest of small records.
//
// CRCs of neighbouring pieces combine into the CRC of both, so that each byte is hashed only once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ckpt {

using Crc32 = std::uint32_t;

// Continues the CRC `before` over `bytes`; start with 0.
Crc32 crc32(std::span<const std::byte> bytes, Crc32 before = 0);
// The CRC of A followed by B, from the CRCs of A and B and the length of B.
Crc32 crc32_combine(Crc32 first, Crc32 second, std::uint64_t second_bytes);
// Copies and checksums in one pass over `source`. The ranges must not overlap.
Crc32 crc32_copy(std::span<std::byte> target, std::span<const std::byte> source, Crc32 before = 0);

// Digest: XXH3-128 of a record. Detects accidents, not malice.
struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const Digest&) const = default;
};
Digest digest_of(std::span<const std::byte> bytes);
// That of their bytes, one behind the other.
Digest digest_of_pieces(std::span<const std::span<const std::byte>> pieces);
std::string to_hex(const Digest& digest);  // 32 lower-case digits.

}  // namespace ckpt
