// CudaRun: one plan of copies from a GPU into a Slot, started once per capture.
//
//   idle --start: an event, a batch--> running --a batch ends: the next--> ending
//                                         +--fence: all that is left, and an event--+
//   ending --listener notified--> idle
//
// Invariants: copies come after everything the trainer had queued at the start. The listener is
//             notified only when every queued copy has ended, also after a failure: nothing writes
//             into the Slot any more. Only recorded events are polled.
// Threads:    start, fence and wait_idle on the training thread; advance on `ckpt-gpu`.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/cuda_batches.hpp"
#include "device/cuda_check.hpp"
#include "device/cuda_order.hpp"
#include "device/cuda_queue.hpp"
#include "device/cuda_run_state.hpp"
#include "device/cuda_skip.hpp"

namespace ckpt::device {

class CudaRun final : public CopyRun, private CudaWork {
 public:
  // `slots`: as CopyList::slots.
  CudaRun(CudaQueue& queue, CudaBatches plan, std::size_t slots, CopyListener& listener);
  ~CudaRun() override;
  CudaRun(const CudaRun&) = delete;
  CudaRun& operator=(const CudaRun&) = delete;

  Status start(const CopyStart& start) override;
  Status fence(Stream stream) override;
  Status wait_idle(Deadline deadline) override;
  // None: the engine takes them as batches arrive.
  std::span<const Crc32> checksums() const override { return {}; }
  std::uint64_t bytes_unchanged() const override { return skip_ ? skip_->bytes_unchanged() : 0; }
  void forget_slots() override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  bool advance(std::unique_lock<std::mutex>& lock) override;
  bool has_arrived() const override { return ended_ > 0; }
  Status make_events();
  Status check_start(const CopyStart& start);
  bool has_left() const { return next_ < plan_.batches.size() && !state_.failure(); }
  bool may_queue();
  Status queue_batches(std::size_t count);
  std::size_t count_together(std::uint64_t bytes_max) const;
  // Both spans are of the batches from the next one to `last`.
  struct Copies {
    std::span<const CudaCopy> by_engine;
    std::span<const CudaCopy> gathered;
  };
  Copies copies_of(std::size_t first, std::size_t last) const;
  Status queue_copies(const Copies& copies, std::byte* ring_half);
  void add_targets(std::span<const CudaCopy> copies, std::byte* ring_half, std::uint64_t& offset);
  CUresult queue_together();
  void make_table();
  void make_check();
  void make_skip(std::size_t slots);
  Result<bool> queue_sums(std::size_t last);
  void check_arrived(Lock& lock);
  std::byte* target_of(const CudaCopy& copy, std::byte* ring_half, std::uint64_t ring_offset) const;
  void queue_all_left();
  bool has_batch_ended();
  bool has_stream_ended();
  void empty_ring(Lock& lock);
  void report_arrived(Lock& lock);
  void end(Lock& lock);
  Status wait_on_host(Lock& lock);

  CudaQueue& queue_;
  const CudaBatches plan_;
  CopyListener& listener_;
  CudaOrder order_;
  CudaRunState state_;
  std::unique_ptr<GatherTable> table_;  // Null: the engine copies the small ones as well.
  std::unique_ptr<CudaCheck> check_;    // Null: what arrives is not checked.
  std::unique_ptr<CudaSkip> skip_;      // Null: all is copied. Checks what arrives, if need be.
  std::vector<CUevent> events_;         // One for each batch, made at the first start.
  std::vector<std::size_t> event_of_;   // Which of them was recorded behind each batch.
  // Arguments for one call of the batched copy, as many as the largest batch needs.
  std::vector<CUdeviceptr> targets_, sources_;
  std::vector<std::size_t> sizes_;

  // The state of the active run, under the queue's lock.
  std::span<std::byte> slot_;
  std::size_t next_ = 0;              // The next batch to queue.
  std::size_t ended_ = 0;             // Batches below it have ended.
  bool is_covered_ = true;            // Every queued copy is followed by a recorded event.
  bool is_unpaced_ = false;           // A thread waits for it.
  bool is_by_ring_ = false;           // The Slot is not pinned.
  std::vector<std::size_t> half_of_;  // The ring's half of each batch in it.
};

}  // namespace ckpt::device
