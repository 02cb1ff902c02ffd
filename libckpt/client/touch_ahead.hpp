// TouchAhead: gives tensors their pages while a restore waits for the bytes.
//
// A new process has not touched its tensors yet, and the kernel clears each page at the first
// touch. That takes longer than the copy into them, and needs nothing that the restore waits for.
//
// Threads: the trainer's. Lifetime: the tensors outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ckpt::client {

class TouchAhead {
 public:
  // `available`: the memory that this process may still use. Where that is less than twice as much
  // as the tensors have, nothing is touched: the process before may have its tensors yet.
  TouchAhead(std::vector<std::span<std::byte>> tensors, std::uint64_t available);

  // Touches some of them, within a millisecond or so. Changes no byte. Returns false when all were
  // touched.
  bool go_on();

 private:
  std::vector<std::span<std::byte>> left_;  // The next one first.
  std::size_t next_ = 0;
};

}  // namespace ckpt::client
