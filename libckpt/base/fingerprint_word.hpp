// FingerprintWord: what one word of a Chunk adds to the two sums of its fingerprint. Pure.
//
// docs/fingerprint.md defines it. The kernel for GPUs is made of it as well.
#pragma once

#include <cstdint>

#include "base/lane.hpp"

namespace ckpt {

// Odd, so that a product loses nothing: 2^64 divided by the golden ratio, and the multipliers of
// the public-domain generators SplitMix64 and MurmurHash3.
constexpr std::uint64_t fingerprint_place_factor = 0x9e3779b97f4a7c15;
constexpr std::uint64_t fingerprint_first_factor = 0xbf58476d1ce4e5b9;
constexpr std::uint64_t fingerprint_low_factor = 0x94d049bb133111eb;
constexpr std::uint64_t fingerprint_high_factor = 0xff51afd7ed558ccd;

constexpr std::uint64_t fingerprint_word_bytes = 8;

struct FingerprintSums {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

// The word's number in its Chunk, plus 1, times the factor: from word to word it grows by that.
CKPT_LANE std::uint64_t fingerprint_place(std::uint64_t word_index) {
  return (word_index + 1) * fingerprint_place_factor;
}

CKPT_LANE void add_fingerprint_word(FingerprintSums& sums, std::uint64_t word,
                                    std::uint64_t place) {
  std::uint64_t value = (word ^ place) * fingerprint_first_factor;
  value ^= value >> 32;
  sums.low += value * fingerprint_low_factor;
  const std::uint64_t other = (value << 29 | value >> 35) * fingerprint_high_factor;
  sums.high += other ^ (other >> 31);
}

}  // namespace ckpt
