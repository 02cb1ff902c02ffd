// ChangedCopyLane: whether a part of the Slot still holds what a tensor holds, and what one lane of
// a warp copies where it does not. Pure.
//
// The GPU's compiler makes the kernel of it (cuda_changed_copy.cu), and the C++ compiler makes what
// the tests run: so its arithmetic is tested without a GPU.
//
// A part has the fingerprint that the tensors have now, and the one that they had when the Slot was
// last filled. Where both are equal, no byte moves.
#pragma once

#include "device/fingerprint_lane.hpp"
#include "device/gather_lane.hpp"

namespace ckpt::device {

// Each entry is copied in so many items, for as many warps at once.
constexpr unsigned changed_copy_items = fingerprint_entry_bytes / gather_part_bytes;
static_assert(changed_copy_items * gather_part_bytes == fingerprint_entry_bytes);
static_assert(fingerprint_lanes == gather_lanes);

// ChangedParts: two sums for each part of the Slot, counted from the Slot's first part.
struct ChangedParts {
  std::uint64_t part_bytes = 0;
  const FingerprintSums* now = nullptr;
  const FingerprintSums* before = nullptr;
};

CKPT_LANE bool has_changed(const ChangedParts& parts, const FingerprintEntry& entry) {
  const std::uint64_t part = entry.slot_offset / parts.part_bytes;
  return parts.now[part].low != parts.before[part].low ||
         parts.now[part].high != parts.before[part].high;
}

// How many bytes of an entry an item has; 0: it lies beyond the entry's end.
CKPT_LANE std::uint64_t bytes_of_item(const FingerprintEntry& entry, unsigned item) {
  const std::uint64_t begin = item * gather_part_bytes;
  if (begin >= entry.bytes) return 0;
  const std::uint64_t left = entry.bytes - begin;
  return left < gather_part_bytes ? left : gather_part_bytes;
}

// Copies one lane's part of an item.
CKPT_LANE void copy_item(const FingerprintEntry& entry, unsigned item, unsigned char* slot,
                         unsigned lane) {
  gather_part({entry.source, entry.slot_offset, entry.bytes}, item, slot, lane);
}

// One lane copies all of a fragment, which is less than a word.
CKPT_LANE void copy_fragment(const FingerprintEntry& fragment, unsigned char* slot) {
  const auto* const source = reinterpret_cast<const unsigned char*>(fragment.source);
  for (std::uint64_t i = 0; i < fragment.bytes; ++i) slot[fragment.slot_offset + i] = source[i];
}

}  // namespace ckpt::device
