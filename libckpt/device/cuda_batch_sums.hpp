// CudaBatchSums: the fingerprints of what the batches of one plan read on the GPU, for each 64 KiB
// of the Slot; and those of the Slot's bytes, taken by the processor from the same entries.
//
// There may be several areas of sums, each for all batches: what a capture reads, and what captures
// before it have read.
//
// Threads: one at a time (the queue's lock); `take_slot` and reading without it, for batches that
//          have ended. Lifetime: the driver outlives it; the context is current at its making and
//          end.
// Memory: taken when it is made. On the GPU and on the host, 24 bytes for each 64 KiB, up to 72 for
//         a tensor that is smaller, and 16 for each 64 KiB and area.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/fingerprint.hpp"
#include "device/cuda_batches.hpp"
#include "device/cuda_fingerprint.hpp"
#include "device/cuda_mirror.hpp"

namespace ckpt::device {

class CudaBatchSums {
 public:
  // Each sum covers so many bytes of the Slot, which are compared together.
  static constexpr std::uint64_t part_bytes = fingerprint_entry_bytes;

  // Place: the sums of one batch in one area.
  struct Place {
    std::size_t batch = 0;
    std::size_t area = 0;
  };

  // Errors: io, unavailable.
  static Result<std::unique_ptr<CudaBatchSums>> make(const CudaDriver& driver, CudaMirrors& mirrors,
                                                     const CudaBatches& plan, std::size_t areas);
  ~CudaBatchSums();  // Nothing that is queued uses it.
  CudaBatchSums(const CudaBatchSums&) = delete;
  CudaBatchSums& operator=(const CudaBatchSums&) = delete;

  // Queues the kernel, which takes the sums of the batch's sources.
  // Errors: as CudaDriver::check; so for the next.
  Status queue(const CudaFingerprint& kernel, const Place& place, unsigned blocks, CUstream stream);
  // Queues the copy of the sums to the host, with the count or without.
  Status queue_to_host(const Place& place, bool with_count, CUstream stream) const;
  // Lets another kernel read a batch, once `queue` has been called for it. Its sums are
  // counted from the Slot's first part.
  CudaFingerprint::Launch launch_of(const Place& place) const;
  // A word on the GPU that `queue` sets to zero, for a count.
  CUdeviceptr count_on_gpu(const Place& place) const;

  std::size_t part_count(std::size_t batch) const { return batches_[batch].part_count; }
  // The part's place in the Slot; the last part may be shorter.
  Stretch part_in_slot(std::size_t batch, std::size_t part, std::uint64_t slot_bytes) const;
  // For a batch that has ended.
  FingerprintSums on_gpu(const Place& place, std::size_t part) const;
  std::uint64_t count(const Place& place) const;  // If it was copied.

  // Takes the sums of the Slot's bytes, of those parts of the batch for which `is_chosen` is not 0.
  // Returns how many bytes that are.
  std::uint64_t take_slot(std::size_t batch, std::span<const std::byte> slot,
                          std::span<const std::uint8_t> is_chosen);
  const FingerprintSum& in_slot(std::size_t part) const { return in_slot_[part]; }

  // The context is gone, and its memory with it.
  void forget();

 private:
  struct Batch {
    std::size_t first_entry = 0;
    std::size_t entry_count = 0;
    std::size_t first_fragment = 0;
    std::size_t fragment_count = 0;
    std::uint64_t first_part = 0;  // Counted in the Slot.
    std::size_t part_count = 0;
    // Each batch has sums of its own, also of a part that two share. The count lies behind them.
    std::size_t first_sum = 0;
  };

  CudaBatchSums(const CudaDriver& driver, CudaMirrors& mirrors)
      : driver_(driver), mirrors_(mirrors) {}
  void add_batch(std::vector<CopyPiece> pieces);
  Status allocate(std::size_t areas);
  std::size_t sums_each() const;  // In one area.
  Stretch bytes_of(const Place& place) const;

  const CudaDriver& driver_;
  CudaMirrors& mirrors_;
  FingerprintPlan plan_;  // All batches, one behind the other.
  std::vector<Batch> batches_;
  std::unique_ptr<CudaMirror> table_;  // As the plan: the entries, then the fragments.
  std::unique_ptr<CudaMirror> sums_;
  bool is_sent_ = false;
  // For one batch at a time, as large as the largest one needs.
  std::vector<FingerprintSum> in_slot_;
  std::vector<FingerprintEntry> fragments_in_slot_;
};

}  // namespace ckpt::device
