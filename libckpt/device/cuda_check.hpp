// CudaCheck: compares what the copies of one plan have brought with what the GPU read beforehand.
//
// Before the copies of a batch the kernel takes fingerprints of their sources, on the same stream.
// When the batch has arrived, the processor takes those of the Slot's bytes. So a difference is a
// fault of the link or of a memory, or somebody has changed a tensor between the two reads.
//
// Threads: one at a time (the queue's lock), and `compare` without it, for batches that have
//          ended. Lifetime: the driver outlives it; the context is current at its making and end.
// Memory: taken when it is made, 40 bytes of the GPU and of the host for each 64 KiB, and up to 72
//         for a tensor that is smaller.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/fingerprint.hpp"
#include "device/cuda_batches.hpp"
#include "device/cuda_fingerprint.hpp"
#include "device/cuda_mirror.hpp"

namespace ckpt::device {

class CudaCheck {
 public:
  // Errors: io, unavailable.
  static Result<std::unique_ptr<CudaCheck>> make(const CudaDriver& driver, CudaMirrors& mirrors,
                                                 const CudaBatches& plan);
  ~CudaCheck();  // Nothing that is queued uses it.
  CudaCheck(const CudaCheck&) = delete;
  CudaCheck& operator=(const CudaCheck&) = delete;

  // Queues the fingerprints of a batch, before its copies. Errors: as CudaDriver::check.
  Status queue(const CudaFingerprint& kernel, std::size_t batch, CUstream stream);
  // For a batch that has ended. The listener names what differs. Errors: corruption.
  Status compare(std::size_t batch, std::span<const std::byte> slot, CopyListener& listener);
  // The context is gone, and its memory with it.
  void forget();

 private:
  // Each sum covers so many bytes of the Slot, which are compared and named together.
  static constexpr std::uint64_t part_bytes = fingerprint_entry_bytes;

  struct Batch {
    std::size_t first_entry = 0;
    std::size_t entry_count = 0;
    std::size_t first_fragment = 0;
    std::size_t fragment_count = 0;
    std::uint64_t first_part = 0;  // Of the Slot.
    std::size_t part_count = 0;
    std::size_t first_sum = 0;  // Each batch has sums of its own, also of a part that two share.
  };

  CudaCheck(const CudaDriver& driver, CudaMirrors& mirrors) : driver_(driver), mirrors_(mirrors) {}
  void add_batch(std::vector<CopyPiece> pieces);
  Status allocate();
  std::size_t sum_count() const;
  std::optional<Stretch> difference(std::size_t batch, std::span<const std::byte> slot);
  void add_slot(const Batch& batch, std::span<const std::byte> slot);

  const CudaDriver& driver_;
  CudaMirrors& mirrors_;
  FingerprintPlan plan_;  // Of all batches, one behind the other.
  std::vector<Batch> batches_;
  std::unique_ptr<CudaMirror> table_;  // As the plan: the entries, then the fragments.
  std::unique_ptr<CudaMirror> sums_;
  bool is_sent_ = false;
  // For one batch at a time, as large as the largest one needs.
  std::vector<FingerprintSum> in_slot_;
  std::vector<FingerprintEntry> fragments_in_slot_;
};

}  // namespace ckpt::device
