// ContextIdentity: detects that a context was destroyed, even if another one reuses its address.
//
// A trainer may reset its GPU. That destroys the context and every handle made in it; using such a
// handle is undefined behaviour. The next context may have the same address.
//
// Threads: any. Lifetime: the driver outlives it.
#pragma once

#include <ckpt/result.hpp>
#include <optional>

#include "device/cuda_driver.hpp"

namespace ckpt::device {

class ContextIdentity {
 public:
  ContextIdentity(const CudaDriver& driver, CUcontext context);

  // Drivers before CUDA 12.0, and drivers that refuse to answer, give no information: the context
  // is then taken to live. Errors: unavailable (it was destroyed, or the driver has shut down).
  Status check() const;

 private:
  const CudaDriver& driver_;
  const CUcontext context_;
  std::optional<unsigned long long> id_;
};

}  // namespace ckpt::device
