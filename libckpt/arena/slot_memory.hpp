// SlotMemory: the bytes of one Slot; with MemorySource, the seam to the machine's memory.
//
// The real source makes pre-faulted memfd segments of at most 1 GiB, which can be sent to a
// trainer. The simulator's is plain heap memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/task.hpp"
#include "os/file_span.hpp"

namespace ckpt::arena {

// One memfd of a Slot, as sent to a trainer.
struct SegmentView {
  int fd = -1;  // Borrowed.
  std::uint64_t bytes = 0;
};

class SlotMemory {
 public:
  virtual ~SlotMemory() = default;
  virtual std::span<std::byte> bytes() = 0;
  // The same range as spans of files, for sendfile and direct writes.
  virtual std::vector<os::FileSpan> file_spans(std::uint64_t offset, std::uint64_t bytes) = 0;
  virtual std::vector<SegmentView> segments() const = 0;  // Empty if there are no files.
};

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Returns memory that is already faulted in. Errors: exhausted (the machine has not enough).
  virtual Task<std::unique_ptr<SlotMemory>> allocate(std::uint64_t bytes) = 0;
};

}  // namespace ckpt::arena
