// ContextIdentity: whether a context is still the one that it was.
//
// A trainer may reset its GPU. That destroys the context and every handle that was made in it, and
// to use one of those is undefined; the context that comes next may have the same address.
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

  // Nothing is known, and it is taken to live, with drivers before CUDA 12.0, and where the driver
  // refuses to answer. Errors: unavailable (it was destroyed, or the driver has shut down).
  Status check() const;

 private:
  const CudaDriver& driver_;
  const CUcontext context_;
  std::optional<unsigned long long> id_;
};

}  // namespace ckpt::device
