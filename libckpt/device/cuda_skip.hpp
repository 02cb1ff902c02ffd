// CudaSkip: the captures of one plan that leave alone what their Slot still holds.
//
// Before the copies of a batch, the kernel takes the fingerprints of their sources. Where it is
// known what the Slot holds, a second kernel copies the parts whose fingerprint is another one now.
// Elsewhere the engine copies all, and from then on it is known.
//
// Invariants: a Slot's bytes that were not copied are read by the processor, and compared with what
//             the GPU read of their sources, before they count as arrived. So a Slot that somebody
//             else has written into costs a capture, and is never served.
// Threads, Lifetime, Memory: as CudaBatchSums, with an area more than there are Slots. `compare`
//             without the queue's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/cuda_batch_sums.hpp"
#include "device/cuda_changed_copy.hpp"
#include "device/slot_areas.hpp"

namespace ckpt::device {

class CudaSkip {
 public:
  struct Wanted {
    std::size_t slots = 0;    // They are filled in turn.
    bool checks_all = false;  // gpu_check: also what is copied is compared.
  };
  // Errors: io, unavailable.
  static Result<std::unique_ptr<CudaSkip>> make(const CudaDriver& driver, CudaMirrors& mirrors,
                                                const CudaBatches& plan, const Wanted& wanted);

  // A capture begins. `generation`: that of the Slot, 0 if nobody knows it.
  void begin(std::uint64_t generation, std::span<std::byte> slot, bool is_pinned);
  // Queues the fingerprints of a batch and, if it can, the copies. True: nothing else is to be
  // copied of it. Errors: unavailable (the context is lost), with checks_all also io.
  struct Kernels {
    const CudaFingerprint& fingerprint;
    CudaChangedCopy& copy;
    unsigned blocks = 0;  // For the kernel of fingerprints.
  };
  Result<bool> queue(const Kernels& kernels, std::size_t batch, CUstream stream);
  // For a batch that has ended. The listener names what differs. Errors: cancelled (somebody else
  // has written into the Slot), corruption (with checks_all: what was copied differs).
  Status compare(std::size_t batch, CopyListener& listener);
  // The capture has ended: well, or so that nothing in the Slot is certain.
  void end(bool is_good);
  // The newest capture's, if that ended well.
  std::uint64_t bytes_unchanged() const { return bytes_unchanged_; }

  // Somebody else may have written into the Slots. Between captures.
  void forget_slots() { areas_.forget(); }
  // The context is gone, and its memory with it.
  void forget() { sums_->forget(); }

 private:
  CudaSkip(std::unique_ptr<CudaBatchSums> sums, const CudaBatches& plan, const Wanted& wanted);
  Status queue_changed(const CudaChangedCopy& copy, std::size_t batch, CUstream stream) const;
  void choose_unchanged(std::size_t batch);
  Status compare_unchanged(std::size_t batch, CopyListener& listener);
  Status compare_all(std::size_t batch, CopyListener& listener);
  CudaBatchSums::Place now(std::size_t batch) const { return {batch, running_.now}; }
  CudaBatchSums::Place before(std::size_t batch) const { return {batch, running_.before.value()}; }

  const std::unique_ptr<CudaBatchSums> sums_;
  const bool checks_all_;
  std::vector<std::uint64_t> batch_bytes_;
  std::vector<std::uint8_t> is_chosen_;  // For one batch: as large as the largest one needs.
  SlotAreas areas_;

  // The capture that runs.
  enum class Copied : std::uint8_t { by_engine, by_kernel, without_sums };
  std::vector<Copied> copied_;  // Each batch.
  SlotAreas::Pair running_;
  std::span<std::byte> slot_;
  bool is_running_ = false;
  bool may_skip_ = false;
  std::uint64_t bytes_unchanged_ = 0;
};

}  // namespace ckpt::device
