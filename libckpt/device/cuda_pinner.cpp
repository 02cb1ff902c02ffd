#include "device/cuda_pinner.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"

namespace ckpt::device {

Status CudaPinner::pin(std::span<std::byte> memory) {
  const RelaxedCapture relaxed(driver_);
  const CudaScope scope(driver_, context_);
  CKPT_CHECK(scope.status());
  for (std::uint64_t done = 0; done < memory.size();) {
    const std::uint64_t bytes = std::min<std::uint64_t>(piece_bytes_, memory.size() - done);
    const Status pinned = driver_.check(
        driver_.register_host(memory.data() + done, bytes, CU_MEMHOSTREGISTER_PORTABLE),
        fmt::format("pin {} bytes of a Slot of {}", bytes, memory.size()));
    if (!pinned) {
      (void)unpin(memory.first(done));
      return pinned;
    }
    done += bytes;
  }
  return {};
}

bool CudaPinner::unpin(std::span<std::byte> memory) {
  const RelaxedCapture relaxed(driver_);
  if (!identity_.check()) return true;  // The context's end has unpinned everything.
  bool is_unpinned = true;
  for (std::uint64_t done = 0; done < memory.size(); done += piece_bytes_)
    is_unpinned = unpin_piece(memory.data() + done) && is_unpinned;
  return is_unpinned;
}

bool CudaPinner::unpin_piece(std::byte* first) {
  constexpr int attempts = 2;  // An error returned by a call may come from an earlier one.
  Status status;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const CudaScope scope(driver_, context_);
    const CUresult result = driver_.unregister_host(first);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) return true;
    status = driver_.check(result, "unpin a part of a Slot");
  }
  log_warning("{}; it stays mapped as long as this process lives", status.error().message());
  return false;
}

}  // namespace ckpt::device
