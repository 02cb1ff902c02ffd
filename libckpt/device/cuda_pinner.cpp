#include "device/cuda_pinner.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "device/cuda_batches.hpp"

namespace ckpt::device {

Status CudaPinner::pin(std::span<std::byte> memory) {
  const RelaxedCapture relaxed(driver_);
  const CudaScope scope(driver_, context_);
  CKPT_CHECK(scope.status());
  for (std::uint64_t done = 0; done < memory.size();) {
    const std::uint64_t bytes = std::min<std::uint64_t>(pin_piece_bytes, memory.size() - done);
    const Status pinned = driver_.check(
        driver_.register_host(memory.data() + done, bytes, CU_MEMHOSTREGISTER_PORTABLE),
        fmt::format("pin {} bytes of a Slot of {}", bytes, memory.size()));
    if (!pinned) {
      unpin(memory.first(done));
      return pinned;
    }
    done += bytes;
  }
  return {};
}

void CudaPinner::unpin(std::span<std::byte> memory) {
  const RelaxedCapture relaxed(driver_);
  const CudaScope scope(driver_, context_);
  for (std::uint64_t done = 0; done < memory.size(); done += pin_piece_bytes) {
    const Status status =
        driver_.check(driver_.unregister_host(memory.data() + done), "unpin a part of a Slot");
    if (!status) log_warning("{}", status.error().message());
  }
}

}  // namespace ckpt::device
