// CudaBatches: turns the pieces of a run into batches of copies that suit a GPU's copy engine.
// Pure.
//
// Pieces that are neighbours both on the GPU and in the Slot become one copy, unless they lie in
// two allocations: the driver refuses a copy from two. One batch is queued at a time. It is large
// enough for the full rate, and small enough that the trainer's own copies, which wait behind it,
// do not wait long.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/units.hpp"
#include "device/device.hpp"

namespace ckpt::device {

struct CudaCopy {
  const std::byte* source = nullptr;  // An address on the GPU.
  std::uint64_t slot_offset = 0;
  std::uint64_t bytes = 0;
};

struct CudaBatch {
  std::size_t first_copy = 0;
  std::size_t copy_count = 0;
  std::size_t first_gathered = 0;  // A place in `gathered`, which cuda_gather_plan.hpp fills.
  std::size_t gathered_count = 0;
  std::uint64_t bytes = 0;
  std::size_t strips_end = 0;  // When this batch has arrived, so have all strips below this index.
};

struct CudaBatches {
  std::vector<CudaCopy> copies;
  std::vector<CudaCopy> gathered;  // Small ones, by a kernel.
  std::vector<CudaBatch> batches;
  std::vector<CudaCopy> zeros;  // Padding, which the host writes; without sources.
};

struct BatchLimits {
  std::uint64_t bytes = 32 * MiB;  // It takes 0.6 ms of a PCIe 5 link.
  std::size_t copies = 1024;       // Each costs the driver about 2 microseconds.
  // Memory is registered with the driver in pieces of this size, counted from its first byte: one
  // larger call would hold the driver's lock for long. No copy may cross the border of two pieces.
  std::uint64_t pin_piece_bytes = 256 * MiB;
};

// A stream takes about a thousand launches that have not begun; one more blocks the thread that
// queues it. Copies that are queued one by one count as a launch each, and two batches are queued.
inline constexpr std::size_t copies_one_by_one_max = 256;

// Behind a fence batches are queued together, up to so many bytes: fewer launches, of which each
// group takes a handful. A state of any size is a hundred groups or a few more.
constexpr std::uint64_t together_bytes_max(std::uint64_t left) {
  constexpr std::uint64_t groups = 100;
  return std::max<std::uint64_t>(256 * MiB, left / groups);
}

// Returns true if an allocation on the GPU begins at the address. Neighbouring allocations leave no
// gap.
using BeginsMemory = std::function<bool(const std::byte*)>;

// A batch may exceed the limit of bytes by one strip. It holds no more copies than the limit, so it
// may end within a strip: thousands of scalars fit into one.
CudaBatches plan_batches(const CopyList& list, const BatchLimits& limits,
                         const BeginsMemory& begins_memory);

}  // namespace ckpt::device
