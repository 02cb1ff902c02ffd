// CopyPlan: where each source's bytes go in a Slot, in which order, and which may wait. Pure.
//
// Exactly one strip writes each byte of the Slot up to the blobs: the file's header, each tensor
// once, and zeros for the padding. Strips of unguarded sources have lists of their own: they are
// copied before the save returns.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checksum.hpp"
#include "device/device.hpp"
#include "format/layout.hpp"

namespace ckpt::snapshot {

// Source: where a tensor's bytes are, parallel to Layout::tensors. Ignored for aliases.
struct Source {
  const std::byte* data = nullptr;
  std::size_t device = 0;  // Index of its Device; 0 is the host.
  bool is_guarded = false;
  // Often the same at the next capture, although it is guarded. A hint.
  bool is_frozen = false;
};

// PlannedRun: the copies that one Device makes in one run.
struct PlannedRun {
  std::size_t device = 0;
  bool is_guarded = false;
  bool is_frozen = false;  // Only of guarded ones.
  device::CopyList list;
};

// StripPlace: names the strip whose checksum comes next in the Slot.
struct StripPlace {
  std::size_t run = 0;
  std::size_t strip = 0;
  std::uint64_t bytes = 0;
};

struct CopyPlan {
  std::uint64_t chunk_bytes = 0;
  std::uint64_t bytes = 0;           // The runs write [0, bytes) of the Slot.
  std::vector<PlannedRun> runs;      // Unguarded ones first, frozen ones last; none is empty.
  std::vector<StripPlace> in_order;  // All strips, by offset.
};

// `header` is the file's header, in host memory; each capture reads it. The layout must come from
// make_layout, and `sources` must be parallel to its tensors.
CopyPlan plan_copies(const format::Layout& layout, std::span<const Source> sources,
                     std::span<const std::byte> header, std::uint64_t chunk_bytes);

// Combines the checksums of neighbours into those of their Chunks. Append them in Slot order.
class ChunkChecksums {
 public:
  explicit ChunkChecksums(std::uint64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  void reserve(std::size_t chunks) { crcs_.reserve(chunks); }
  void clear();
  // `bytes` must not reach beyond the Chunk in which they start.
  void add(Crc32 crc, std::uint64_t bytes);
  std::span<const Crc32> crcs() const { return crcs_; }

 private:
  std::uint64_t chunk_bytes_;
  std::uint64_t bytes_ = 0;
  std::vector<Crc32> crcs_;
};

}  // namespace ckpt::snapshot
