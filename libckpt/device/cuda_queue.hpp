// CudaQueue: the copy stream that all runs of one GPU share, with its order and its pace.
//
// A GPU's copy engine is a queue without priorities: the trainer's own small copies wait for
// everything queued here. So at most two batches are queued, until a fence asks for all.
//
// Threads: all fields under `mutex`, but the constant ones. Lifetime: outlives the runs.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/assert.hpp"
#include "device/cuda_changed_copy.hpp"
#include "device/cuda_context_identity.hpp"
#include "device/cuda_fingerprint.hpp"
#include "device/cuda_gather.hpp"
#include "device/cuda_kernel.hpp"
#include "device/cuda_work.hpp"
#include "device/gap_choice.hpp"
#include "device/gpus.hpp"
#include "device/memory_pins.hpp"
#include "device/token_bucket.hpp"

namespace ckpt::device {

// A link of 10 GB/s carries 600 GB in this time. A longer run means that the GPU hangs.
inline constexpr std::chrono::seconds gpu_fence_deadline{60};

// LoggedOnce: a trouble that each layout meets again is logged for the first one.
// Threads: any.
class LoggedOnce {
 public:
  bool is_first() { return !was_logged_.exchange(true); }

 private:
  std::atomic<bool> was_logged_{false};
};

class CudaQueue {
 public:
  static constexpr std::size_t batches_queued_max = 2;
  // Counts polls, one per interval: together a few milliseconds.
  static constexpr std::size_t errors_in_a_row_max = 100;
  // Two, so that one fills while the other is emptied into the Slot.
  static constexpr std::size_t ring_halves = 2;

  CudaQueue(const CudaDriver& driver_in, CUcontext context_in, const MemoryPins& pins_in,
            const GpuOptions& options)
      : driver(driver_in),
        context(context_in),
        identity(driver_in, context_in),
        pins(pins_in),
        prefers_overlap(options.prefers_overlap),
        bucket(options.copy_rate, options.batch_bytes),
        gather(driver_in, options.gather),
        mirrors(driver_in),
        is_checked(options.is_checked),
        fingerprint(driver_in),
        changed_copy(driver_in, options.skips_unchanged),
        gap_(options.gap),
        usual_gap_(usual_gap(has_one_queue())) {}
  ~CudaQueue() { CKPT_ASSERT(runs.empty()); }
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  // Errors: io, unavailable.
  Status open(CUdevice device);
  void close();  // Before the context is released, while it lives.
  // Checks, with the lock, whether the trainer has destroyed the context, and sets `lost` if so: no
  // handle may be used then.
  bool has_context();
  // Queues a short gap between two batches, in which the copy engine serves other streams. A kind
  // of gap that the driver does not have gives way to the usual one.
  Status queue_gap();
  // The same with another kind. Virtual machines lack some, and only the call shows which: it
  // returns CUDA_ERROR_NOT_SUPPORTED.
  CUresult try_gap(GpuGap gap);
  GpuGap gap() const { return gap_; }
  void set_gap(GpuGap gap) { gap_ = gap; }  // Before the first run.
  // Grows each half of the ring to the largest batch of any run, since runs that are under way
  // together share it. Errors: exhausted.
  Status make_ring();
  std::optional<std::size_t> free_half() const;
  std::byte* half(std::size_t index) { return ring_ + index * half_bytes_; }

  const CudaDriver& driver;
  const CUcontext context;
  const ContextIdentity identity;
  const MemoryPins& pins;
  const bool prefers_overlap;

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<CudaWork*> runs;  // Those that are active, in the order of their starts.
  std::size_t queued = 0;       // Batches on the stream, not yet known to have ended.
  std::optional<Error> lost;    // Why the context is gone.
  bool is_half_used[ring_halves] = {};
  std::uint64_t batch_bytes_max = 0;  // Of all runs so far.
  // Small tensors are copied in one call, if the driver has that call and its GPU accepts it.
  bool is_batch_copy_usable = false;
  TokenBucket bucket;
  CudaGather gather;
  CudaMirrors mirrors;
  const bool is_checked;
  CudaFingerprint fingerprint;  // Unusable where nothing needs it.
  CudaChangedCopy changed_copy;
  CUstream stream = nullptr;
  LoggedOnce gather_trouble;
  LoggedOnce check_trouble;
  LoggedOnce skip_trouble;
  LoggedOnce hash_trouble;

 private:
  Status make_stream();
  Status find_batch_copy(CUdevice device);
  Status load_fingerprint();

  GpuGap gap_;
  const GpuGap usual_gap_;  // By the environment, which only the trainer's thread may read.
  CUdeviceptr gap_word_ = 0;
  std::byte* ring_ = nullptr;
  std::uint64_t half_bytes_ = 0;
  bool takes_host_pointers_ = false;
  bool is_context_gone_ = false;
};

}  // namespace ckpt::device
