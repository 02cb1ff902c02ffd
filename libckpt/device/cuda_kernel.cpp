#include "device/cuda_kernel.hpp"

#include <fmt/format.h>

#include <cstdlib>

namespace ckpt::device {

Result<CUfunction> load_kernel(const CudaDriver& driver, const CudaKernel& kernel) {
  if (driver.load_module == nullptr || driver.module_function == nullptr ||
      driver.launch_kernel == nullptr)
    return fail(Errc::unsupported, "the driver launches no kernels");
  CUmodule module = nullptr;
  CKPT_CHECK(driver.check(driver.load_module(&module, kernel.ptx),
                          fmt::format("load the kernel for {}", kernel.purpose)));
  CUfunction function = nullptr;
  CKPT_CHECK(driver.check(driver.module_function(&function, module, kernel.name),
                          fmt::format("find the kernel for {}", kernel.purpose)));
  return function;
}

bool has_one_queue() {
  const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return connections != nullptr && std::string_view(connections) == "1";
}

}  // namespace ckpt::device
