#include "device/cuda_pinner.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "device/cuda_batches.hpp"

namespace ckpt::device {

namespace {

// Else a call of ours would break a graph that the trainer captures at that moment.
void relax_capture(const CudaDriver& driver) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  (void)driver.exchange_capture_mode(&mode);
}

}  // namespace

Status CudaPinner::pin(std::span<std::byte> memory) {
  const CudaScope scope(driver_, context_);
  CKPT_CHECK(scope.status());
  relax_capture(driver_);
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
  const CudaScope scope(driver_, context_);
  for (std::uint64_t done = 0; done < memory.size(); done += pin_piece_bytes) {
    const Status status =
        driver_.check(driver_.unregister_host(memory.data() + done), "unpin a part of a Slot");
    if (!status) log_warning("{}", status.error().message());
  }
}

}  // namespace ckpt::device
