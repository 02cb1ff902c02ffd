#include "base/checksum.hpp"

#include <fmt/format.h>
#include <isa-l/crc.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/assert.hpp"
#include "base/streaming_copy.hpp"
#include "base/units.hpp"

namespace ckpt {

namespace {

// Polynomials over GF(2) modulo the CRC's own, reflected: the top bit is the coefficient of x^0.
using Polynomial = std::uint32_t;
constexpr Polynomial ieee_polynomial = 0xedb88320u;
constexpr Polynomial one = 0x80000000u;
constexpr Polynomial x_to_the_8 = one >> 8;

constexpr Polynomial multiply(Polynomial a, Polynomial b) {
  Polynomial product = 0;
  for (Polynomial bit = one; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ ieee_polynomial : b >> 1;  // b times x.
  }
  return product;
}

// Entry k is x^(8 * 2^k). Appending 2^k bytes multiplies a CRC by it.
constexpr std::array<Polynomial, 64> make_byte_shifts() {
  std::array<Polynomial, 64> shifts{};
  Polynomial power = x_to_the_8;
  for (Polynomial& shift : shifts) {
    shift = power;
    power = multiply(power, power);
  }
  return shifts;
}
constexpr std::array<Polynomial, 64> byte_shifts = make_byte_shifts();

// A block stays in the first-level cache between its checksum and its copy, and is long enough that
// the checksum's start-up cost vanishes: 8 KiB was the best of 4 to 64 where we measured.
constexpr std::size_t copy_block_bytes = 8 * KiB;
// A target of this size or more is not expected to be read from a cache soon.
constexpr std::size_t streaming_bytes_min = 256 * KiB;

}  // namespace

Crc32 crc32(std::span<const std::byte> bytes, Crc32 before) {
  if (bytes.empty()) return before;
  return crc32_gzip_refl(before, reinterpret_cast<const unsigned char*>(bytes.data()),
                         bytes.size());
}

Crc32 crc32_combine(Crc32 first, Crc32 second, std::uint64_t second_bytes) {
  for (std::size_t k = 0; second_bytes != 0; ++k, second_bytes >>= 1) {
    if ((second_bytes & 1) != 0) first = multiply(byte_shifts[k], first);
  }
  return first ^ second;
}

Crc32 crc32_copy(std::span<std::byte> target, std::span<const std::byte> source, Crc32 before) {
  CKPT_ASSERT(target.size() == source.size());
  const bool is_streaming = source.size() >= streaming_bytes_min;
  for (std::size_t done = 0; done < source.size();) {
    const std::size_t bytes = std::min(copy_block_bytes, source.size() - done);
    const auto block = source.subspan(done, bytes);
    // The checksum brings the block into the cache, from where the copy takes it.
    before = crc32(block, before);
    if (is_streaming) {
      streaming_copy(target.subspan(done, bytes), block);
    } else {
      std::memcpy(target.data() + done, block.data(), bytes);
    }
    done += bytes;
  }
  if (is_streaming) streaming_copies_done();
  return before;
}

Digest digest_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return Digest{hash.high64, hash.low64};
}

Digest digest_of_pieces(std::span<const std::span<const std::byte>> pieces) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  CKPT_ASSERT(state != nullptr);
  (void)XXH3_128bits_reset(state.get());
  for (const auto piece : pieces)
    (void)XXH3_128bits_update(state.get(), piece.data(), piece.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return Digest{hash.high64, hash.low64};
}

std::string to_hex(const Digest& digest) {
  return fmt::format("{:016x}{:016x}", digest.high, digest.low);
}

}  // namespace ckpt
