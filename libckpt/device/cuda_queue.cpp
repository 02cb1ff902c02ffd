#include "device/cuda_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::device {

void CudaQueue::close() {
  const CudaScope scope(driver, context);
  if (stream != nullptr) (void)driver.destroy_stream(stream);
  if (gap_word_ != 0) (void)driver.free(gap_word_);
  if (ring_ != nullptr) (void)driver.free_host(ring_);
}

bool CudaQueue::has_context() {
  if (is_context_gone_) return false;
  Status status = identity.check();
  if (status) return true;
  is_context_gone_ = true;
  if (!lost) lost = std::move(status).error();
  return false;
}

Status CudaQueue::open() {
  const CudaScope scope(driver, context);
  CKPT_CHECK(scope.status());
  // Non-blocking: the default stream, which many trainers use, must not wait for our copies.
  CKPT_CHECK(driver.check(driver.create_stream(&stream, CU_STREAM_NON_BLOCKING),
                          "create the stream for captures"));
  return driver.check(driver.allocate(&gap_word_, sizeof(std::uint32_t)),
                      "allocate a word on the GPU");
}

Status CudaQueue::queue_gap() {
  // This runs on another engine. Without it, two copies in a row on one stream run as one block.
  return driver.check(driver.set_words(gap_word_, 0, 1, stream), "queue a gap between batches");
}

Status CudaQueue::make_ring(std::uint64_t half_bytes) {
  if (half_bytes <= half_bytes_) return {};
  if (std::any_of(std::begin(is_half_used), std::end(is_half_used), [](bool is) { return is; }))
    return fail(Errc::exhausted, "the pinned buffer is in use, and too small for this capture");
  if (ring_ != nullptr) (void)driver.free_host(std::exchange(ring_, nullptr));
  half_bytes_ = 0;
  void* memory = nullptr;
  const Status made = driver.check(
      driver.allocate_host(&memory, half_bytes * ring_halves, CU_MEMHOSTALLOC_PORTABLE),
      "allocate a pinned buffer");
  if (!made)
    return fail(Errc::exhausted,
                fmt::format("the Slot is not pinned, and neither can {} bytes be: {}",
                            half_bytes * ring_halves, made.error().text()));
  ring_ = static_cast<std::byte*>(memory);
  half_bytes_ = half_bytes;
  return {};
}

std::optional<std::size_t> CudaQueue::free_half() const {
  for (std::size_t index = 0; index < ring_halves; ++index) {
    if (!is_half_used[index]) return index;
  }
  return std::nullopt;
}

}  // namespace ckpt::device
