// CudaKernel: one of our kernels, as the driver makes it from its PTX.
//
// Threads: any. Lifetime: the current context's, which frees the module.
#pragma once

#include <string_view>

#include "device/cuda_driver.hpp"

namespace ckpt::device {

struct CudaKernel {
  const char* ptx = nullptr;
  const char* name = nullptr;  // In the PTX.
  std::string_view purpose;    // For errors: "small tensors".
};

// Loads it into the current context, once for each device that is opened. Errors: unsupported (the
// driver launches no kernels), and as CudaDriver::check.
Result<CUfunction> load_kernel(const CudaDriver& driver, const CudaKernel& kernel);

// CUDA_DEVICE_MAX_CONNECTIONS is 1. All streams then share one queue of the hardware: a kernel
// waits for those that the trainer has launched, and so do the copies behind it. Copies alone go
// past them.
bool has_one_queue();

}  // namespace ckpt::device
