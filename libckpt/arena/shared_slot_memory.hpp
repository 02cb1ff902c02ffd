// SharedSlotMemory: a Slot's bytes in memfd segments that a trainer can map; the real MemorySource.
//
// Segments are at most 1 GiB, sealed against resizing, and lie in one contiguous range of
// addresses. Every page is allocated before the Slot is used: missing memory is an error now, and
// not the death of a process later.
//
// Threads: one executor. Pages are faulted in on threads of the source.
// Lifetime: destroy the source before the executor's context; its destructor waits for pending
//           allocations. The memory it made outlives it.
#pragma once

#include <functional>
#include <memory>

#include "arena/slot_memory.hpp"
#include "os/disk_threads.hpp"

namespace ckpt::arena {

struct SharedMemoryOptions {
  // Four threads fault in about 10 GiB/s; more would only take cores from the trainers.
  int prefault_threads = 4;
  // The memory that the machine could give now, read before each allocation. Unset: no limit.
  std::function<std::uint64_t()> available_bytes;
};

class SharedMemorySource final : public MemorySource {
 public:
  explicit SharedMemorySource(SharedMemoryOptions options = {});

  // Errors: exhausted (with the numbers), invalid_argument (zero bytes), io.
  Task<std::unique_ptr<SlotMemory>> allocate(std::uint64_t bytes) override;

 private:
  SharedMemoryOptions options_;
  os::DiskThreads threads_;  // One: Slots are made one after the other.
};

}  // namespace ckpt::arena
