#include "device/cuda_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "base/log.hpp"

namespace ckpt::device {

namespace {

// Lives as long as the process: the copy of it may run late.
constexpr std::uint32_t gap_source = 0;

}  // namespace

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

Status CudaQueue::open(CUdevice device) {
  const CudaScope scope(driver, context);
  CKPT_CHECK(scope.status());
  CKPT_CHECK(make_stream());
  CKPT_CHECK(find_batch_copy(device));
  CKPT_CHECK(load_fingerprint());
  CKPT_CHECK(changed_copy.load(stream, fingerprint, takes_host_pointers_));
  CKPT_CHECK(driver.check(driver.allocate(&gap_word_, sizeof(std::uint32_t)),
                          "allocate a word on the GPU"));
  return {};
}

Status CudaQueue::make_stream() {
  // The highest priority: a gap that is a kernel then goes before the trainer's waiting kernels,
  // unless CUDA_DEVICE_MAX_CONNECTIONS leaves one queue for all streams.
  int lowest = 0;
  int highest = 0;
  CKPT_CHECK(driver.check(driver.priority_range(&lowest, &highest),
                          "ask for the priorities of the GPU's streams"));
  // Non-blocking: the default stream, which many trainers use, must not wait for our copies.
  return driver.check(driver.create_priority_stream(&stream, CU_STREAM_NON_BLOCKING, highest),
                      "create the stream for captures");
}

Status CudaQueue::find_batch_copy(CUdevice device) {
  // The batched copy takes the Slot's own addresses. A GPU that cannot use these would lose the
  // context by it, whereas single copies are documented to take any host memory.
  int takes_host_pointers = 0;
  CKPT_CHECK(driver.check(
      driver.device_attribute(&takes_host_pointers,
                              CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, device),
      "ask whether the GPU uses host addresses"));
  takes_host_pointers_ = takes_host_pointers != 0;
  is_batch_copy_usable = driver.has_batch_copy() && takes_host_pointers_;
  return gather.load(stream, takes_host_pointers_);
}

// Captures go on without it: a check that cannot be made is no reason to stop training.
Status CudaQueue::load_fingerprint() {
  if (!is_checked && !changed_copy.is_wanted()) return {};
  Status loaded = fingerprint.load(stream);
  if (loaded || loaded.error().code() == Errc::unavailable) return loaded;
  if (!is_checked) return {};  // Its other users say so themselves.
  log_warning("gpu_check: captures of this GPU are not checked: {}", loaded.error().text());
  return {};
}

CUresult CudaQueue::try_gap(GpuGap gap) {
  // This runs on another engine. Without it, two copies in a row on one stream run as one block.
  switch (gap) {
    case GpuGap::automatic:
    case GpuGap::none:
      break;
    case GpuGap::memset:
      return driver.set_words(gap_word_, 0, 1, stream);
    case GpuGap::write_value:
      return driver.write_value(stream, gap_word_, 0, CU_STREAM_WRITE_VALUE_DEFAULT);
    case GpuGap::copy:
      return driver.copy_to_device(gap_word_, &gap_source, sizeof(gap_source), stream);
  }
  return CUDA_SUCCESS;
}

Status CudaQueue::queue_gap() {
  CUresult result = try_gap(gap_);
  if (result == CUDA_ERROR_NOT_SUPPORTED && gap_ != usual_gap_) {
    log_info("gpu_gap={} is not supported by the driver of this GPU: {} takes its place",
             name_of(gap_), name_of(usual_gap_));
    gap_ = usual_gap_;
    result = try_gap(gap_);
  }
  return driver.check(result, "queue a gap between batches");
}

Status CudaQueue::make_ring() {
  const std::uint64_t half_bytes = batch_bytes_max;
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
