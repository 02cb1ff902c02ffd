// CudaFingerprint: the kernel that computes fingerprints of Chunks where their tensors lie, on a
// GPU; and FingerprintTable, what it reads and writes for one plan.
//
// The sums are those of base/fingerprint, bit for bit. docs/fingerprint.md defines them.
//
// Threads: one at a time. Lifetime: the driver outlives both, and so does the context, which frees
//          the module; it is current at each call.
#pragma once

#include <memory>
#include <span>

#include "device/cuda_driver.hpp"
#include "device/cuda_fingerprint_plan.hpp"
#include "device/cuda_mirror.hpp"

namespace ckpt::device {

// Sums are set to zero on the GPU by words of 32 bits.
inline constexpr std::size_t words_per_sum = sizeof(FingerprintSums) / sizeof(std::uint32_t);

class CudaFingerprint {
 public:
  // As many as have work on the largest GPUs of today, eight warps each: more would wait.
  static constexpr unsigned blocks_of_a_whole_gpu = 1024;
  // A GPU has a hundred cores or more; the others go on with the training.
  static constexpr unsigned blocks_beside_training = 32;

  explicit CudaFingerprint(const CudaDriver& driver) : driver_(driver) {}

  // Loads the kernel and launches it once with nothing to do: a driver may load code at its first
  // launch, and wait for the GPU then. Errors: unsupported (the driver launches no kernels), io,
  // unavailable (the context is lost).
  Status load(CUstream stream);
  bool is_usable() const { return function_ != nullptr; }

  // Addresses on the GPU. Each Chunk's sums are added to, so they begin as zeros.
  struct Launch {
    CUdeviceptr entries = 0;
    unsigned entry_count = 0;
    CUdeviceptr fragments = 0;
    unsigned fragment_count = 0;
    std::uint64_t chunk_bytes = 0;
    CUdeviceptr sums = 0;
    unsigned blocks = blocks_of_a_whole_gpu;
  };
  // Errors: as CudaDriver::check.
  Status queue(const Launch& launch, CUstream stream) const;

 private:
  const CudaDriver& driver_;
  CUfunction function_ = nullptr;
};

class FingerprintTable {
 public:
  // For a Slot of so many Chunks. Errors: io, unavailable.
  struct Shape {
    std::uint64_t chunk_bytes = 0;
    std::size_t chunks = 0;
  };
  static Result<std::unique_ptr<FingerprintTable>> make(const CudaDriver& driver,
                                                        const FingerprintPlan& plan,
                                                        const Shape& shape);

  // Queues all of it: the table once, the kernel, and the copy of the sums to the host. Errors: as
  // CudaDriver::check.
  Status queue(const CudaFingerprint& kernel, CUstream stream,
               unsigned blocks = CudaFingerprint::blocks_of_a_whole_gpu);
  // Only the kernel, which adds to what the sums are: for timings.
  Status queue_kernel(const CudaFingerprint& kernel, CUstream stream, unsigned blocks) const;
  // The memory stays allocated: the context is gone, or aborted work still uses it.
  void forget();
  CUdeviceptr sums_on_gpu() const { return launch_.sums; }
  // One for each Chunk, when what `queue` queued has ended.
  std::span<const FingerprintSums> sums() const;

 private:
  explicit FingerprintTable(const CudaDriver& driver) : driver_(driver) {}

  const CudaDriver& driver_;
  std::unique_ptr<CudaMirror> table_;  // The entries, then the fragments. Null: there are none.
  std::unique_ptr<CudaMirror> sums_;
  CudaFingerprint::Launch launch_;
  bool is_sent_ = false;
};

}  // namespace ckpt::device
