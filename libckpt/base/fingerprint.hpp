// Fingerprint: a 128-bit hash of a Chunk that a GPU can compute as well as a processor.
//
// Each 8-byte word is mixed with its place and added to two sums, so that the words may be taken in
// any order, by any number of threads, and parts of a Chunk add up. docs/fingerprint.md defines it.
// It detects accidents, not malice. Any change within one aligned word is always detected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/checksum.hpp"
#include "base/fingerprint_word.hpp"

namespace ckpt {

// FingerprintSum: the two sums over some words of a Chunk.
class FingerprintSum {
 public:
  FingerprintSum() = default;
  explicit FingerprintSum(const FingerprintSums& sums) : sums_(sums) {}

  // Adds bytes that begin `offset` bytes into the Chunk, a multiple of 8. Only the Chunk's last
  // bytes may be no whole word.
  void add(std::span<const std::byte> bytes, std::uint64_t offset);
  void add(const FingerprintSum& other);
  // For a Chunk of `bytes`, all of whose words were added once.
  Digest finish(std::uint64_t bytes) const;

 private:
  FingerprintSums sums_;
};

Digest fingerprint_of(std::span<const std::byte> chunk);

// As much of it as a checksum has, where both are kept in one place.
std::uint32_t short_fingerprint(const Digest& fingerprint);

}  // namespace ckpt
