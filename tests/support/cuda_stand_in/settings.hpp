// Settings: what a test asks of the stand-in driver: its machine, and when something fails.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ckpt::test {

struct Settings {
  std::uint64_t seed = 1;
  std::uint64_t devices = 2;
  std::uint64_t version = 13000;
  std::uint64_t eager = 0;    // 1: all that can run does, at each call.
  std::uint64_t fail_at = 0;  // The call that fails, counted from 1.
  std::uint64_t error = CUDA_ERROR_UNKNOWN;
  std::uint64_t kill_at = 0;       // The call in which the process dies.
  std::uint64_t kill_copy = 0;     // The copy in the middle of which the process dies.
  std::uint64_t fail_copy = 0;     // The copy that ends with `error`, as an error of the GPU.
  std::uint64_t corrupt_copy = 0;  // The copy to the host that arrives with a bit changed.
  std::uint64_t pin_call_max = 1ull << 30;  // Bytes of one registration.
  std::uint64_t pin_total_max = ~0ull;
  std::uint64_t pin_ms = 0;           // How long each registration, and its end, blocks all others.
  std::uint64_t fail_unpins = 0;      // So many of the first calls that unregister memory fail.
  std::uint64_t refuses_batches = 0;  // 1: cuMemcpyBatchAsync is there, and not for this GPU.
  std::uint64_t refuses_values = 0;   // 1: cuStreamWriteValue32 is there, and not for this GPU.
  std::uint64_t drop_wait = 0;        // The cuStreamWaitEvent that is forgotten: a planted bug.
  std::uint64_t pending_max = ~0ull;  // Launches that a stream takes; one more waits for room.
  std::uint64_t host_pointers = 1;    // 0: a batch with addresses of the host loses the context.
  std::uint64_t refuses_ptx = 0;      // 1: the PTX of a kernel is too new for the driver.
  std::uint64_t fail_launch = 0;      // The launch of a kernel that is refused.
  std::uint64_t lacks_newer = 0;      // 1: without the functions that CUDA 12 has brought.
  // 1: copies to the host go through one engine of each GPU, first come, first served.
  std::uint64_t fifo = 0;
  // Queues of the hardware that streams without priority share, as CUDA_DEVICE_MAX_CONNECTIONS
  // says; 0: each stream has its own.
  std::uint64_t connections = 0;
  // 1: the copy in which the process dies (kill_copy) goes on writing for a while.
  std::uint64_t dma_after_death = 0;
};

}  // namespace ckpt::test
