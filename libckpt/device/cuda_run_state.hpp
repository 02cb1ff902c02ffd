// CudaRunState: how far a run on a GPU's copy stream is, and what failed in it.
//
//   idle --begin--> running --begin_end--> ending --finish: the listener is notified--> idle
//
// Invariants: the first failure stays until the next run. A run ends when nothing that it queued is
//             under way.
// Threads:    all with the queue's lock, which the waits and finish() release meanwhile.
#pragma once

#include <mutex>
#include <optional>

#include "device/cuda_queue.hpp"
#include "device/cuda_work.hpp"
#include "device/device.hpp"

namespace ckpt::device {

// The driver says whether what was queued has ended, and is not out of order.
inline bool is_answer(CUresult result) {
  return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY;
}

class CudaRunState {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // `content`: "copies", as an expired deadline names it. The text stays.
  CudaRunState(CudaQueue& queue, CudaWork& work, const char* content)
      : queue_(queue), work_(work), content_(content) {}
  CudaRunState(const CudaRunState&) = delete;
  CudaRunState& operator=(const CudaRunState&) = delete;

  bool is_running() const { return phase_ == Phase::running; }
  bool is_idle() const { return phase_ == Phase::idle; }
  const std::optional<Error>& failure() const { return failure_; }

  void forget_failure();  // Before the first thing is queued.
  void begin();
  void fail_with(Error error);
  // Whether all that was queued before a query has ended, by the driver's answer. After many
  // refusals in a row the GPU counts as lost: nothing that is queued will run any more.
  bool has_ended(CUresult answer, const char* attempted);
  void begin_end();  // A fence need not wait for the listener.
  void finish(Lock& lock, CopyListener& listener, Status status);

  // Errors: unavailable (deadline).
  Status wait_for_end(Lock& lock);
  Status wait_idle(Lock& lock, Deadline deadline);

 private:
  enum class Phase : std::uint8_t { idle, running, ending };

  Error expired() const;

  CudaQueue& queue_;
  CudaWork& work_;
  const char* const content_;
  Phase phase_ = Phase::idle;
  std::optional<Error> failure_;
  std::size_t refusals_in_a_row_ = 0;
};

}  // namespace ckpt::device
