// CudaBatches: the pieces of a run as copies that a GPU's copy engine likes, in batches. Pure.
//
// Pieces that are neighbours both on the GPU and in the Slot become one copy, unless they lie in
// two allocations: the driver refuses a copy out of two. A batch is what is queued at a time: large
// enough for the full rate, small enough that the trainer's own copies, which wait behind it, do
// not wait long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/units.hpp"
#include "device/device.hpp"

namespace ckpt::device {

// Memory is registered with the driver in pieces of this size, counted from where it begins: one
// larger call would hold the driver's lock for long. No copy may cross from one piece to the next.
inline constexpr std::uint64_t pin_piece_bytes = 1 * GiB;

struct CudaCopy {
  const std::byte* source = nullptr;  // An address on the GPU.
  std::uint64_t slot_offset = 0;
  std::uint64_t bytes = 0;
};

struct CudaBatch {
  std::size_t first_copy = 0;
  std::size_t copy_count = 0;
  std::uint64_t bytes = 0;
  std::size_t strips_end = 0;  // All strips below it have arrived when this batch has.
};

struct CudaBatches {
  std::vector<CudaCopy> copies;
  std::vector<CudaBatch> batches;
  std::vector<CudaCopy> zeros;  // Padding, which the host writes; no source.
};

struct BatchLimits {
  std::uint64_t bytes = 32 * MiB;  // Of design.md's 16 to 64: 0.6 ms of a PCIe 5 link.
  std::size_t copies = 1024;       // Each costs the driver about 2 microseconds.
};

// Whether an allocation on the GPU begins at the address. Two that follow each other leave no gap.
using BeginsMemory = std::function<bool(const std::byte*)>;

// A batch ends where a strip does, so it may be larger than the limits by one strip.
CudaBatches plan_batches(const CopyList& list, const BatchLimits& limits,
                         const BeginsMemory& begins_memory);

}  // namespace ckpt::device
