// CudaCheck: compares what the copies of one plan have brought with what the GPU read beforehand.
//
// Before the copies of a batch the kernel takes fingerprints of their sources, on the same stream.
// When the batch has arrived, the processor takes those of the Slot's bytes. So a difference is a
// fault of the link or of a memory, or somebody has changed a tensor between the two reads.
//
// Threads, Lifetime, Memory: as CudaBatchSums, with one area. `compare` without the queue's lock.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda_batch_sums.hpp"

namespace ckpt::device {

class CudaCheck {
 public:
  // Errors: io, unavailable.
  static Result<std::unique_ptr<CudaCheck>> make(const CudaDriver& driver, CudaMirrors& mirrors,
                                                 const CudaBatches& plan);

  // Queues the fingerprints of a batch, before its copies. Errors: as CudaDriver::check.
  Status queue(const CudaFingerprint& kernel, std::size_t batch, CUstream stream);
  // For a batch that has ended. The listener names what differs. Errors: corruption.
  Status compare(std::size_t batch, std::span<const std::byte> slot, CopyListener& listener);
  // The context is gone, and its memory with it.
  void forget() { sums_->forget(); }

 private:
  explicit CudaCheck(std::unique_ptr<CudaBatchSums> sums) : sums_(std::move(sums)) {}

  std::unique_ptr<CudaBatchSums> sums_;
  std::vector<std::uint8_t> all_parts_;  // As many ones as the largest batch has parts.
};

// Compares the parts of a batch that has ended, as they were taken of the Slot, with what the GPU
// read; only those for which `is_chosen` is not 0. Returns the first that differs.
std::optional<Stretch> first_difference(const CudaBatchSums& sums,
                                        const CudaBatchSums::Place& place,
                                        std::span<const std::uint8_t> is_chosen,
                                        std::uint64_t slot_bytes);
// Names what lies there, for an error.
std::string name_in_slot(const Stretch& in_slot, CopyListener& listener);
// For bytes that are not those that the GPU read. The code is corruption.
Error copy_differs(const Stretch& in_slot, CopyListener& listener);

}  // namespace ckpt::device
