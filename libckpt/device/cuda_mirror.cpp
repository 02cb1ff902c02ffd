#include "device/cuda_mirror.hpp"

#include <fmt/format.h>

#include "base/assert.hpp"

namespace ckpt::device {

Result<std::unique_ptr<CudaMirror>> CudaMirror::make(const CudaDriver& driver, std::size_t bytes,
                                                     std::string_view what) {
  CKPT_ASSERT(bytes > 0);
  std::unique_ptr<CudaMirror> mirror(new CudaMirror(driver, bytes));
  CKPT_CHECK(driver.check(driver.allocate_host(&mirror->on_host_, bytes, CU_MEMHOSTALLOC_PORTABLE),
                          fmt::format("allocate pinned memory for {}", what)));
  CKPT_CHECK(driver.check(driver.allocate(&mirror->on_gpu_, bytes),
                          fmt::format("allocate memory of the GPU for {}", what)));
  return mirror;
}

CudaMirror::~CudaMirror() {
  if (on_gpu_ != 0) (void)driver_.free(on_gpu_);
  if (on_host_ != nullptr) (void)driver_.free_host(on_host_);
}

void CudaMirror::forget() {
  on_gpu_ = 0;
  on_host_ = nullptr;
}

Status CudaMirror::to_gpu(CUstream stream) const {
  return driver_.check(driver_.copy_to_device(on_gpu_, on_host_, bytes_, stream),
                       "copy a table to the GPU");
}

Status CudaMirror::to_host(CUstream stream, const Stretch& part) const {
  CKPT_ASSERT(part.offset + part.bytes <= bytes_);
  std::byte* const target = on_host().data() + part.offset;
  return driver_.check(driver_.copy_to_host(target, on_gpu_ + part.offset, part.bytes, stream),
                       "copy results from the GPU");
}

}  // namespace ckpt::device
