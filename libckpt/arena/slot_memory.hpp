// SlotMemory: the bytes of one Slot and where they come from; the seam to the machine's memory.
//
// The real source makes memfd segments of at most 1 GiB each, pre-faulted, that can be handed to a
// trainer; the simulator's is plain heap memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/task.hpp"
#include "os/file_span.hpp"

namespace ckpt::arena {

// One memfd of a Slot, as it is handed to a trainer.
struct SegmentView {
  int fd = -1;  // Borrowed.
  std::uint64_t bytes = 0;
};

class SlotMemory {
 public:
  virtual ~SlotMemory() = default;
  virtual std::span<std::byte> bytes() = 0;
  // The same range as pieces of files, for sendfile and direct writes.
  virtual std::vector<os::FileSpan> file_spans(std::uint64_t offset, std::uint64_t bytes) = 0;
  virtual std::vector<SegmentView> segments() const = 0;  // Empty where there are no files.
};

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Faulted in when it returns. Errors: exhausted (the machine has no such memory).
  virtual Task<std::unique_ptr<SlotMemory>> allocate(std::uint64_t bytes) = 0;
};

}  // namespace ckpt::arena
