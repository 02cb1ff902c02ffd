#include "base/fingerprint.hpp"

#include <bit>
#include <cstring>

#include "base/assert.hpp"
#include "base/fingerprint_vector.hpp"

namespace ckpt {

namespace {

constexpr std::size_t word_bytes = fingerprint_word_bytes;
constexpr std::uint64_t length_factor = 0xc4ceb9fe1a85ec53;  // Odd, of MurmurHash3 as well.

std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * fingerprint_first_factor;
  value = (value ^ (value >> 27)) * fingerprint_low_factor;
  return value ^ (value >> 31);
}

std::uint64_t word_at(const std::byte* bytes, std::size_t count) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, count);
  return word;
}

}  // namespace

void FingerprintSum::add(std::span<const std::byte> bytes, std::uint64_t offset) {
  CKPT_ASSERT(offset % word_bytes == 0);
  std::uint64_t place = fingerprint_place(offset / word_bytes);
  std::size_t at = add_fingerprint_vectors(sums_, bytes, place);
  CKPT_ASSERT(at % word_bytes == 0);
  place += at / word_bytes * fingerprint_place_factor;
  const auto add_word = [&](std::uint64_t word) {
    add_fingerprint_word(sums_, word, place);
    place += fingerprint_place_factor;
  };
  for (; at + word_bytes <= bytes.size(); at += word_bytes)
    add_word(word_at(bytes.data() + at, word_bytes));
  if (at < bytes.size()) add_word(word_at(bytes.data() + at, bytes.size() - at));
}

void FingerprintSum::add(const FingerprintSum& other) {
  sums_.low += other.sums_.low;
  sums_.high += other.sums_.high;
}

Digest FingerprintSum::finish(std::uint64_t bytes) const {
  const std::uint64_t length = bytes * length_factor;
  return {mixed(sums_.high + length), mixed(sums_.low ^ length)};
}

Digest fingerprint_of(std::span<const std::byte> chunk) {
  FingerprintSum sum;
  sum.add(chunk, 0);
  return sum.finish(chunk.size());
}

std::uint32_t short_fingerprint(const Digest& fingerprint) {
  const std::uint64_t half = fingerprint.high ^ fingerprint.low;
  return static_cast<std::uint32_t>(half ^ half >> 32);
}

}  // namespace ckpt
