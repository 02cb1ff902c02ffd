// GatherLane: the bytes of a small tensor that one lane of a warp copies into the Slot. Pure.
//
// The GPU's compiler makes the kernel of it (cuda_gather.cu), and the C++ compiler makes what the
// tests run: so its arithmetic is tested without a GPU.
//
// The Slot lies behind PCIe, where small writes are dear: all stores but those of the first and
// last few bytes are of 16 bytes, at multiples of 16. Loads are as wide as the source's address
// then allows.
#pragma once

#include <cstdint>

#include "base/lane.hpp"

namespace ckpt::device {

// GatherEntry: one small tensor, as the table on the GPU has it.
struct GatherEntry {
  std::uint64_t source = 0;       // An address on the GPU.
  std::uint64_t slot_offset = 0;  // From the Slot's first byte, which each launch gives.
  std::uint64_t bytes = 0;
};
static_assert(sizeof(GatherEntry) == 24);

constexpr unsigned gather_lanes = 32;                 // A warp has so many.
constexpr std::uint64_t gather_part_bytes = 8 << 10;  // A warp copies so much at a time.

struct alignas(16) GatherVector {
  std::uint64_t low;
  std::uint64_t high;
};

// Sixteen bytes from words of one size: 16, 8, 4, 2 or 1.
template <class Word>
CKPT_LANE GatherVector gather_vector(const unsigned char* source) {
  constexpr unsigned word_bits = 8 * sizeof(Word);
  constexpr unsigned words = 8 / sizeof(Word);  // In each half.
  const auto* const at = reinterpret_cast<const Word*>(source);
  GatherVector made{0, 0};
  for (unsigned i = 0; i < words; ++i) {
    made.low |= static_cast<std::uint64_t>(at[i]) << (i * word_bits);
    made.high |= static_cast<std::uint64_t>(at[words + i]) << (i * word_bits);
  }
  return made;
}
template <>
CKPT_LANE GatherVector gather_vector<GatherVector>(const unsigned char* source) {
  return *reinterpret_cast<const GatherVector*>(source);
}

template <class Word>
CKPT_LANE void gather_vectors(const unsigned char* source, unsigned char* target,
                              std::uint64_t vectors, unsigned lane) {
  constexpr std::uint64_t size = sizeof(GatherVector);
  for (std::uint64_t i = lane; i < vectors; i += gather_lanes)
    *reinterpret_cast<GatherVector*>(target + i * size) = gather_vector<Word>(source + i * size);
}

CKPT_LANE void gather_bytes(const unsigned char* source, unsigned char* target, std::uint64_t bytes,
                            unsigned lane) {
  // First up to a multiple of 16 of the target, then vectors, then what is left: below 16 bytes.
  const std::uint64_t to_border = (16 - reinterpret_cast<std::uint64_t>(target) % 16) % 16;
  const std::uint64_t head = to_border < bytes ? to_border : bytes;
  const std::uint64_t vectors = (bytes - head) / 16;
  const std::uint64_t tail = bytes - head - vectors * 16;
  if (lane < head) target[lane] = source[lane];
  source += head;
  target += head;
  const std::uint64_t from = reinterpret_cast<std::uint64_t>(source);
  if (from % 16 == 0) {
    gather_vectors<GatherVector>(source, target, vectors, lane);
  } else if (from % 8 == 0) {
    gather_vectors<std::uint64_t>(source, target, vectors, lane);
  } else if (from % 4 == 0) {
    gather_vectors<std::uint32_t>(source, target, vectors, lane);
  } else if (from % 2 == 0) {
    gather_vectors<std::uint16_t>(source, target, vectors, lane);
  } else {
    gather_vectors<std::uint8_t>(source, target, vectors, lane);
  }
  if (lane < tail) target[vectors * 16 + lane] = source[vectors * 16 + lane];
}

// One part of an entry: `part` counts from its first byte, and may lie beyond its end.
CKPT_LANE void gather_part(const GatherEntry& entry, std::uint64_t part, unsigned char* slot,
                           unsigned lane) {
  const std::uint64_t begin = part * gather_part_bytes;
  if (begin >= entry.bytes) return;
  const std::uint64_t left = entry.bytes - begin;
  const std::uint64_t bytes = left < gather_part_bytes ? left : gather_part_bytes;
  gather_bytes(reinterpret_cast<const unsigned char*>(entry.source) + begin,
               slot + entry.slot_offset + begin, bytes, lane);
}

}  // namespace ckpt::device
