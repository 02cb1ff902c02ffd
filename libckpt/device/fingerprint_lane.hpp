// FingerprintLane: the words of a Chunk that one lane of a warp adds to its fingerprint. Pure.
//
// The GPU's compiler makes the kernel of it (cuda_fingerprint.cu), and the C++ compiler makes what
// the tests run: so its arithmetic is tested without a GPU.
//
// The words are the Slot's, and so a tensor's bytes may lie at any address modulo 8. The words that
// a tensor fills are read where it lies; a word that several tensors share is put together of
// fragments, and one lane adds it once.
#pragma once

#include <cstdint>

#include "base/fingerprint_word.hpp"

namespace ckpt::device {

// FingerprintEntry: bytes of a tensor, as the table on the GPU has them, all in one Chunk. Whole
// words, at most `fingerprint_entry_bytes`; or a fragment: fewer bytes than a word, all in one.
struct FingerprintEntry {
  std::uint64_t source = 0;       // An address on the GPU.
  std::uint64_t slot_offset = 0;  // Whole words: a multiple of 8.
  std::uint64_t bytes = 0;
};
static_assert(sizeof(FingerprintEntry) == 24);

constexpr unsigned fingerprint_lanes = 32;                   // A warp has so many.
constexpr std::uint64_t fingerprint_entry_bytes = 64 << 10;  // A warp reads so much at a time.

struct alignas(16) FingerprintPair {
  std::uint64_t first;
  std::uint64_t second;
};

// Loads of bytes that are read once: they need not stay in the GPU's caches.
CKPT_LANE std::uint64_t load_word(const std::uint64_t* source) {
#ifdef __CUDACC__
  return __ldcs(reinterpret_cast<const unsigned long long*>(source));
#else
  return *source;
#endif
}
CKPT_LANE FingerprintPair load_pair(const FingerprintPair* source) {
#ifdef __CUDACC__
  const ulonglong2 pair = __ldcs(reinterpret_cast<const ulonglong2*>(source));
  return {pair.x, pair.y};
#else
  return *source;
#endif
}

CKPT_LANE std::uint64_t bytes_of_word(const unsigned char* source, unsigned count) {
  std::uint64_t word = 0;
  for (unsigned i = 0; i < count; ++i) word |= static_cast<std::uint64_t>(source[i]) << (8 * i);
  return word;
}

// Items are what a lane reads at once: a pair of words, where the address is a multiple of 16.
struct PairItems {
  using Item = FingerprintPair;
  const FingerprintPair* pairs;

  CKPT_LANE Item load(unsigned index) const { return load_pair(pairs + index); }
  CKPT_LANE static void add(FingerprintSums& sums, const Item& item, std::uint64_t place) {
    add_fingerprint_word(sums, item.first, place);
    add_fingerprint_word(sums, item.second, place + fingerprint_place_factor);
  }
};
// A word, where it is a multiple of 8.
struct WordItems {
  using Item = std::uint64_t;
  const std::uint64_t* words;

  CKPT_LANE Item load(unsigned index) const { return load_word(words + index); }
  CKPT_LANE static void add(FingerprintSums& sums, Item item, std::uint64_t place) {
    add_fingerprint_word(sums, item, place);
  }
};
// Elsewhere a word is cut from the two aligned ones in which it lies.
struct ShiftedItems {
  using Item = std::uint64_t;
  const std::uint64_t* aligned;
  unsigned right;  // Bits of the first one that are not the word's: 8 to 56.

  CKPT_LANE Item load(unsigned index) const {
    return load_word(aligned + index) >> right | load_word(aligned + index + 1) << (64 - right);
  }
  CKPT_LANE static void add(FingerprintSums& sums, Item item, std::uint64_t place) {
    add_fingerprint_word(sums, item, place);
  }
};

// Adds the items [first, end) that are this lane's. Several loads are under way at once: the memory
// is far away.
template <class Items>
CKPT_LANE void add_items(const Items& source, unsigned first, unsigned end,
                         std::uint64_t first_word, unsigned lane, FingerprintSums& sums) {
  constexpr unsigned lanes = fingerprint_lanes;
  constexpr unsigned together = 4;
  constexpr unsigned words_each = sizeof(typename Items::Item) / fingerprint_word_bytes;
  constexpr std::uint64_t step = words_each * lanes * fingerprint_place_factor;
  unsigned at = first + lane;
  std::uint64_t place = fingerprint_place(first_word + std::uint64_t{words_each} * at);
  for (; at + (together - 1) * lanes < end; at += together * lanes) {
    typename Items::Item items[together];
    for (unsigned i = 0; i < together; ++i) items[i] = source.load(at + i * lanes);
    for (unsigned i = 0; i < together; ++i) {
      Items::add(sums, items[i], place);
      place += step;
    }
  }
  for (; at < end; at += lanes) {
    Items::add(sums, source.load(at), place);
    place += step;
  }
}

CKPT_LANE void add_pairs(const unsigned char* source, unsigned words, std::uint64_t first_word,
                         unsigned lane, FingerprintSums& sums) {
  add_items(PairItems{reinterpret_cast<const FingerprintPair*>(source)}, 0, words / 2, first_word,
            lane, sums);
  if (words % 2 == 0 || lane != 0) return;
  const auto* const last = reinterpret_cast<const std::uint64_t*>(source) + (words - 1);
  add_fingerprint_word(sums, load_word(last), fingerprint_place(first_word + words - 1));
}

// The first and the last word are read by bytes: the memory around them may belong to nobody.
CKPT_LANE void add_shifted(const unsigned char* source, unsigned words, std::uint64_t first_word,
                           unsigned lane, FingerprintSums& sums) {
  const auto shift = static_cast<unsigned>(reinterpret_cast<std::uint64_t>(source) % 8);
  const ShiftedItems shifted{reinterpret_cast<const std::uint64_t*>(source - shift), 8 * shift};
  add_items(shifted, 1, words - 1, first_word, lane, sums);
  if (lane == 0)
    add_fingerprint_word(sums, bytes_of_word(source, 8), fingerprint_place(first_word));
  if (lane == 1 && words > 1)
    add_fingerprint_word(sums, bytes_of_word(source + 8 * std::uint64_t{words - 1}, 8),
                         fingerprint_place(first_word + words - 1));
}

// One lane's share of an entry of whole words.
CKPT_LANE void add_entry(const FingerprintEntry& entry, std::uint64_t chunk_bytes, unsigned lane,
                         FingerprintSums& sums) {
  const auto* const source = reinterpret_cast<const unsigned char*>(entry.source);
  const auto words = static_cast<unsigned>(entry.bytes / fingerprint_word_bytes);
  const std::uint64_t first_word = entry.slot_offset % chunk_bytes / fingerprint_word_bytes;
  if (entry.source % 16 == 0) {
    add_pairs(source, words, first_word, lane, sums);
  } else if (entry.source % 8 == 0) {
    add_items(WordItems{reinterpret_cast<const std::uint64_t*>(source)}, 0, words, first_word, lane,
              sums);
  } else {
    add_shifted(source, words, first_word, lane, sums);
  }
}

// Fragments lie in the Slot's order. False: an earlier one begins the word of this fragment, and
// nothing was added.
CKPT_LANE bool add_fragments(const FingerprintEntry* fragments, unsigned count, unsigned index,
                             std::uint64_t chunk_bytes, FingerprintSums& sums) {
  const std::uint64_t word_index = fragments[index].slot_offset / fingerprint_word_bytes;
  if (index > 0 && fragments[index - 1].slot_offset / fingerprint_word_bytes == word_index)
    return false;
  std::uint64_t word = 0;
  for (unsigned i = index; i < count; ++i) {
    const FingerprintEntry& part = fragments[i];
    if (part.slot_offset / fingerprint_word_bytes != word_index) break;
    const auto first = static_cast<unsigned>(part.slot_offset % fingerprint_word_bytes);
    word |= bytes_of_word(reinterpret_cast<const unsigned char*>(part.source),
                          static_cast<unsigned>(part.bytes))
            << (8 * first);
  }
  const std::uint64_t in_chunk = word_index * fingerprint_word_bytes % chunk_bytes;
  add_fingerprint_word(sums, word, fingerprint_place(in_chunk / fingerprint_word_bytes));
  return true;
}

}  // namespace ckpt::device
