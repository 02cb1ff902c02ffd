#include "device/cuda_fingerprint_plan.hpp"

#include <algorithm>

#include "base/assert.hpp"
#include "base/units.hpp"

namespace ckpt::device {

namespace {

constexpr std::uint64_t word_bytes = fingerprint_word_bytes;

FingerprintEntry entry_of(const CopyPiece& piece, std::uint64_t begin, std::uint64_t end) {
  const auto source = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(piece.source));
  return {source + (begin - piece.slot_offset), begin, end - begin};
}

}  // namespace

FingerprintPlan plan_fingerprints(std::span<const CopyPiece> pieces, std::uint64_t chunk_bytes) {
  CKPT_ASSERT(chunk_bytes > 0);
  CKPT_ASSERT(chunk_bytes % word_bytes == 0);
  FingerprintPlan plan;
  std::uint64_t at = 0;
  for (const CopyPiece& piece : pieces) {
    const std::uint64_t end = piece.slot_offset + piece.bytes;
    CKPT_ASSERT(piece.slot_offset >= at);
    at = piece.slot_offset;
    const auto add = [&](std::vector<FingerprintEntry>& list, std::uint64_t to) {
      if (at < to && piece.source != nullptr) list.push_back(entry_of(piece, at, to));
      at = to;
    };
    add(plan.fragments, std::min(align_up(at, word_bytes), end));
    const std::uint64_t words_end = end - end % word_bytes;
    while (at < words_end) {
      const std::uint64_t chunk_end = at - at % chunk_bytes + chunk_bytes;
      add(plan.entries, std::min({words_end, chunk_end, at + fingerprint_entry_bytes}));
    }
    add(plan.fragments, end);
  }
  return plan;
}

}  // namespace ckpt::device
