#include "base/fingerprint.hpp"

#include <bit>
#include <cstring>

#include "base/assert.hpp"

namespace ckpt {

namespace {

constexpr std::size_t word_bytes = sizeof(std::uint64_t);

// Odd, so that a product loses nothing: 2^64 divided by the golden ratio, and the multipliers of
// the public-domain generators SplitMix64 and MurmurHash3.
constexpr std::uint64_t place_factor = 0x9e3779b97f4a7c15;
constexpr std::uint64_t first_factor = 0xbf58476d1ce4e5b9;
constexpr std::uint64_t low_factor = 0x94d049bb133111eb;
constexpr std::uint64_t high_factor = 0xff51afd7ed558ccd;
constexpr std::uint64_t length_factor = 0xc4ceb9fe1a85ec53;

std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * first_factor;
  value = (value ^ (value >> 27)) * low_factor;
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
  std::uint64_t place = (offset / word_bytes + 1) * place_factor;
  const auto add_word = [&](std::uint64_t word) {
    std::uint64_t value = (word ^ place) * first_factor;
    value ^= value >> 32;
    low_ += value * low_factor;
    const std::uint64_t other = std::rotl(value, 29) * high_factor;
    high_ += other ^ (other >> 31);
    place += place_factor;
  };
  std::size_t at = 0;
  for (; at + word_bytes <= bytes.size(); at += word_bytes)
    add_word(word_at(bytes.data() + at, word_bytes));
  if (at < bytes.size()) add_word(word_at(bytes.data() + at, bytes.size() - at));
}

void FingerprintSum::add(const FingerprintSum& other) {
  low_ += other.low_;
  high_ += other.high_;
}

Digest FingerprintSum::finish(std::uint64_t bytes) const {
  const std::uint64_t length = bytes * length_factor;
  return {mixed(high_ + length), mixed(low_ ^ length)};
}

Digest fingerprint_of(std::span<const std::byte> chunk) {
  FingerprintSum sum;
  sum.add(chunk, 0);
  return sum.finish(chunk.size());
}

}  // namespace ckpt
