// SharedSlotMemory: a Slot's bytes in memfd segments that a trainer can map: the real MemorySource.
//
// Segments are at most 1 GiB, sealed against resizing, and lie in one contiguous range of
// addresses. Every page is allocated before the Slot is used: memory that is not there is found out
// now, as an error, and not later, as the death of a process.
//
// Threads:   one executor. Pages are faulted in on threads of the source.
// Lifetime:  destroy the source before the executor's context; its destructor waits for the
//            allocations that were asked for. What it made lives on by itself.
#pragma once

#include <functional>
#include <memory>

#include "arena/slot_memory.hpp"
#include "os/disk_threads.hpp"

namespace ckpt::arena {

struct SharedMemoryOptions {
  // Together they fault in about 10 GiB/s; more would only take cores from the trainers.
  int prefault_threads = 4;
  // What the machine could give now; asked before each allocation. Unset: nobody is asked.
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
