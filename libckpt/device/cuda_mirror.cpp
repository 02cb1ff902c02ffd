#include "device/cuda_mirror.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.hpp"
#include "base/units.hpp"

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

Status CudaMirror::to_gpu(CUstream stream, const Stretch& part) const {
  CKPT_ASSERT(part.offset + part.bytes <= bytes_);
  const std::byte* const source = on_host().data() + part.offset;
  return driver_.check(driver_.copy_to_device(on_gpu_ + part.offset, source, part.bytes, stream),
                       "copy a table to the GPU");
}

Status CudaMirror::to_host(CUstream stream, const Stretch& part) const {
  CKPT_ASSERT(part.offset + part.bytes <= bytes_);
  std::byte* const target = on_host().data() + part.offset;
  return driver_.check(driver_.copy_to_host(target, on_gpu_ + part.offset, part.bytes, stream),
                       "copy results from the GPU");
}

Result<std::unique_ptr<CudaMirror>> CudaMirrors::take(std::size_t bytes, std::string_view what) {
  // The smallest that is large enough.
  const auto found = std::find_if(spares_.rbegin(), spares_.rend(), [&](const auto& spare) {
    return spare->on_host().size() >= bytes;
  });
  if (found == spares_.rend())
    return CudaMirror::make(driver_, std::bit_ceil(std::max<std::size_t>(bytes, page_bytes)), what);
  std::unique_ptr<CudaMirror> taken = std::move(*found);
  spares_.erase(std::next(found).base());
  return taken;
}

void CudaMirrors::give_back(std::unique_ptr<CudaMirror> mirror) {
  const auto is_larger = [](const auto& a, const auto& b) {
    return a->on_host().size() > b->on_host().size();
  };
  spares_.insert(std::ranges::upper_bound(spares_, mirror, is_larger), std::move(mirror));
  if (spares_.size() > spares_max) spares_.pop_back();
}

void CudaMirrors::close(bool has_context) {
  for (const auto& spare : spares_)
    if (!has_context) spare->forget();
  spares_.clear();
}

}  // namespace ckpt::device
