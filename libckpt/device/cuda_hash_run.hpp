// CudaHashRun: takes checksums of a GPU's memory where it lies, and copies none of it.
//
//   idle --start: behind the trainer's work--> running --a slice ends: the next--> ending
//                                                +--fence: all that is left, and an event--+
//   ending --listener notified--> idle
//
// The checksums are short fingerprints of the stretches that were chosen. One slice at a time is
// read by a few of the GPU's cores, between the batches of copies; behind a fence, by all of them.
//
// Invariants: a checksum that cannot be taken costs no capture: such a run ends well, without any.
//             The listener is notified only when nothing that was queued reads the sources.
// Threads:    as CudaRun.
// Memory:     taken when it is made. On the GPU and pinned on the host, 24 bytes for each 64 KiB of
//             the sources, and up to 64 for each of them.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "device/cuda_order.hpp"
#include "device/cuda_queue.hpp"
#include "device/cuda_run_state.hpp"
#include "device/cuda_work.hpp"

namespace ckpt::device {

class CudaHashRun final : public HashRun, private CudaWork {
 public:
  // With the context current, and the kernel for fingerprints usable.
  CudaHashRun(CudaQueue& queue, std::vector<std::span<const std::byte>> sources,
              std::uint64_t slice_bytes, CopyListener& listener);
  ~CudaHashRun() override;
  CudaHashRun(const CudaHashRun&) = delete;
  CudaHashRun& operator=(const CudaHashRun&) = delete;

  void choose(std::span<const Stretch> stretches) override;
  Status start(const CopyStart& start) override;
  Status fence(Stream stream) override;
  Status wait_idle(Deadline deadline) override;
  std::span<const Crc32> checksums() const override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  // Slice: what one launch of the kernel reads.
  struct Slice {
    std::size_t entries = 0;
    unsigned blocks = 0;
  };

  Status allocate();
  bool write_table();
  Status begin(Stream stream);
  bool advance(Lock& lock) override;
  bool has_arrived() const override { return has_arrived_; }
  bool has_left() const { return !is_all_queued_ && !state_.failure(); }
  void queue_slices(const Slice& slice, std::size_t count_max);
  Status queue_slice(const Slice& slice);
  bool has_ended();
  void take_checksums();
  void end(Lock& lock);
  void say_once(const Error& why);

  CudaQueue& queue_;
  const std::vector<std::span<const std::byte>> sources_;
  const std::size_t slice_entries_;
  CopyListener& listener_;
  CudaOrder order_;
  CudaRunState state_;
  CUevent event_ = nullptr;
  std::unique_ptr<CudaMirror> table_;  // Of one run: the entries, then the fragments.
  std::unique_ptr<CudaMirror> sums_;   // Null, as the table: no run takes checksums.
  std::span<const Stretch> stretches_;
  std::vector<Crc32> crcs_;
  bool has_crcs_ = false;

  // The state of the active run, under the queue's lock.
  std::size_t entry_count_ = 0;
  std::size_t fragment_count_ = 0;
  std::size_t next_ = 0;  // The next entry to queue.
  bool is_all_queued_ = false;
  bool is_under_way_ = false;  // Something is queued, and not known to have ended.
  bool is_covered_ = true;     // The event is recorded behind all of that.
  bool has_arrived_ = false;
};

}  // namespace ckpt::device
