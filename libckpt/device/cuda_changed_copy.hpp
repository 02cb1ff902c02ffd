// CudaChangedCopy: the kernel that copies into a pinned Slot what it does not hold already.
//
//   off, or unusable --load: the driver takes the PTX and a first launch--> usable
//   usable --a launch is refused--> unusable, for good
//
// Threads: one at a time (the queue's lock). Lifetime: the driver outlives it, and so does the
//          context, which frees the module.
#pragma once

#include "device/cuda_driver.hpp"
#include "device/cuda_fingerprint.hpp"

namespace ckpt::device {

class CudaChangedCopy {
 public:
  CudaChangedCopy(const CudaDriver& driver, bool is_wanted)
      : driver_(driver), is_wanted_(is_wanted) {}

  // Once the kernel for fingerprints is loaded, or was found unusable. With the context current.
  // Errors: unavailable (the context is lost); anything else leaves it unusable, and is logged.
  Status load(CUstream stream, const CudaFingerprint& fingerprint, bool takes_host_pointers);
  bool is_wanted() const { return is_wanted_; }
  bool is_usable() const { return function_ != nullptr; }

  // Queues the copies of one batch. Errors: as CudaDriver::check.
  struct Launch {
    CudaFingerprint::Launch now;  // The Slot's new content, with the sums of its sources.
    CUdeviceptr before = 0;       // The sums of what it holds.
    std::byte* slot = nullptr;
    CUdeviceptr copied = 0;  // Is increased by the bytes copied.
  };
  Status queue(const Launch& launch, CUstream stream) const;

  // Nothing is skipped from now on. Said once. Errors: unavailable (the context is lost).
  Status give_up(const Error& why);

 private:
  Status load_and_try(CUstream stream, const CudaFingerprint& fingerprint,
                      bool takes_host_pointers);

  const CudaDriver& driver_;
  const bool is_wanted_;
  CUfunction function_ = nullptr;
};

}  // namespace ckpt::device
