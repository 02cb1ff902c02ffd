#include "base/fingerprint_vector.hpp"

#include <cstring>

#include "base/assert.hpp"

namespace ckpt {

#ifdef __x86_64__

namespace {

constexpr std::size_t words_each = 8;
constexpr std::size_t vector_bytes = words_each * fingerprint_word_bytes;

bool has_vectors() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  return has;
}

// As add_fingerprint_word, for eight words at once. The compiler's own vectors: with the intrinsics
// of g++ 12 it warns of what their header leaves undefined.
__attribute__((target("avx512f,avx512dq"))) void add_vectors(FingerprintSums& sums,
                                                             const std::byte* at, std::size_t count,
                                                             std::uint64_t place) {
  using Words = std::uint64_t __attribute__((vector_size(vector_bytes)));
  Words places;
  for (std::size_t i = 0; i < words_each; ++i) places[i] = place + i * fingerprint_place_factor;
  Words low{};
  Words high{};
  for (std::size_t i = 0; i < count; ++i) {
    Words words;
    std::memcpy(&words, at + i * vector_bytes, vector_bytes);
    Words value = (words ^ places) * fingerprint_first_factor;
    value ^= value >> 32;
    low += value * fingerprint_low_factor;
    const Words other = (value << 29 | value >> 35) * fingerprint_high_factor;
    high += other ^ (other >> 31);
    places += words_each * fingerprint_place_factor;
  }
  for (std::size_t i = 0; i < words_each; ++i) {
    sums.low += low[i];
    sums.high += high[i];
  }
}

}  // namespace

std::size_t add_fingerprint_vectors(FingerprintSums& sums, std::span<const std::byte> bytes,
                                    std::uint64_t place) {
  const std::size_t count = bytes.size() / vector_bytes;
  if (count == 0 || !has_vectors()) return 0;
  add_vectors(sums, bytes.data(), count, place);
  CKPT_ASSERT(count * vector_bytes <= bytes.size());
  return count * vector_bytes;
}

#else

std::size_t add_fingerprint_vectors(FingerprintSums&, std::span<const std::byte>, std::uint64_t) {
  return 0;
}

#endif

}  // namespace ckpt
