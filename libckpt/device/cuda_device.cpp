#include "device/cuda_device.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "device/cuda_gap_probe.hpp"
#include "device/cuda_hash_run.hpp"
#include "device/cuda_kernel.hpp"
#include "device/cuda_run.hpp"
#include "os/thread_settings.hpp"

namespace ckpt::device {

namespace {

constexpr std::chrono::microseconds settle_poll_interval{100};

// Each batch that may be skipped is up to five launches, and all of them are queued at once, where
// a stream takes about a thousand.
constexpr std::uint64_t skipping_batches_max = 100;

// A few cores of an H200 read 500 GB/s (G11 few), and its link carries 50. So the copies wait for
// such a slice as long as for one of their own batches.
constexpr std::uint64_t hashed_beside_a_batch = 8;

std::uint64_t bytes_of(const CopyList& list) {
  std::uint64_t bytes = 0;
  for (const Strip& strip : list.strips) bytes += strip.bytes;
  return bytes;
}

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(const CudaDriver& driver, int index,
                                                     const MemoryPins& pins,
                                                     const GpuOptions& options) {
  const RelaxedCapture relaxed(driver);
  const auto describe = [&](const char* what) { return fmt::format("GPU {}: {}", index, what); };
  CUdevice handle = 0;
  CKPT_CHECK(driver.check(driver.get_device(&handle, index), describe("find it")));
  CUcontext context = nullptr;
  CKPT_CHECK(driver.check(driver.retain_context(&context, handle), describe("open its context")));
  std::unique_ptr<CudaDevice> device(new CudaDevice(driver, handle, context, pins, options));
  CKPT_CHECK(device->open_streams(options));
  device->start_thread();
  return device;
}

CudaDevice::CudaDevice(const CudaDriver& driver, CUdevice handle, CUcontext context,
                       const MemoryPins& pins, const GpuOptions& options)
    : handle_(handle),
      limits_{options.batch_bytes, options.batch_copies_max, options.pin_piece_bytes},
      queue_(driver, context, pins, options) {}

CudaDevice::~CudaDevice() {
  {
    const std::lock_guard lock(queue_.mutex);
    is_stopping_ = true;
  }
  queue_.changed.notify_all();
  if (thread_.joinable()) thread_.join();
  const RelaxedCapture relaxed(queue_.driver);
  const CudaScope scope(queue_.driver, queue_.context);
  const bool has_context = queue_.has_context();
  queue_.mirrors.close(has_context);
  if (has_context) {
    if (restored_ != nullptr) (void)queue_.driver.destroy_event(restored_);
    if (restore_stream_ != nullptr) (void)queue_.driver.destroy_stream(restore_stream_);
    queue_.close();
  }
  // The trainer's own reference keeps the primary context alive for as long as it needs it.
  (void)queue_.driver.release_context(handle_);
}

Status CudaDevice::open_streams(const GpuOptions& options) {
  CKPT_CHECK(queue_.open(handle_));
  const CudaScope scope(queue_.driver, queue_.context);
  CKPT_CHECK(scope.status());
  if (queue_.gap() == GpuGap::automatic)
    queue_.set_gap(find_gap(queue_, handle_, options.gap_cache));
  const CudaDriver& driver = queue_.driver;
  CKPT_CHECK(driver.check(driver.create_stream(&restore_stream_, CU_STREAM_NON_BLOCKING),
                          "create the stream for restores"));
  return driver.check(driver.create_event(&restored_, CU_EVENT_DISABLE_TIMING), "create an event");
}

void CudaDevice::start_thread() {
  const os::SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
}

void CudaDevice::run() {
  os::set_thread_name("ckpt-gpu");
  PollPause pause;
  std::unique_lock lock(queue_.mutex);
  while (true) {
    queue_.changed.wait(
        lock, [&] { return is_stopping_ || quiesce_ == Quiesce::asked || !queue_.runs.empty(); });
    // Anew each time: one refusal must not leave the thread without it for good.
    const RelaxedCapture relaxed(queue_.driver);
    const CudaScope scope(queue_.driver, queue_.context);
    (void)queue_.has_context();
    if (quiesce_ == Quiesce::asked) carry_out_quiesce(lock);
    if (is_stopping_ && queue_.runs.empty()) return;
    bool has_moved = false;
    // A run that ends leaves the list, and the next one takes its index.
    for (std::size_t i = 0; i < queue_.runs.size();) {
      CudaWork* const run = queue_.runs[i];
      has_moved = run->advance(lock) || has_moved;
      if (i < queue_.runs.size() && queue_.runs[i] == run) ++i;
    }
    pause.looked(has_moved ? PollPause::Seen::moved : seen_at_rest());
    if (!has_moved) queue_.changed.wait_for(lock, pause.length());
  }
}

PollPause::Seen CudaDevice::seen_at_rest() const {
  const bool is_far = std::none_of(queue_.runs.begin(), queue_.runs.end(),
                                   [](const CudaWork* run) { return run->has_arrived(); });
  return is_far ? PollPause::Seen::far : PollPause::Seen::under_way;
}

std::unique_ptr<CopyRun> CudaDevice::make_run(CopyList list, CopyListener& listener) {
  const RelaxedCapture relaxed(queue_.driver);
  const CudaScope scope(queue_.driver, queue_.context);
  const auto begins_memory = [&](const std::byte* data) {
    const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(data));
    CUdeviceptr begin = 0;
    const CUresult result =
        queue_.driver.pointer_attribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address);
    return result != CUDA_SUCCESS || begin == address;  // Two copies are correct in any case.
  };
  BatchLimits limits = limits_;
  if (skips(list)) limits.bytes = std::max(limits.bytes, bytes_of(list) / skipping_batches_max);
  if (!queue_.is_batch_copy_usable) limits.copies = std::min(limits.copies, copies_one_by_one_max);
  CudaBatches plan = plan_batches(list, limits, begins_memory);
  return std::make_unique<CudaRun>(queue_, gather_small(std::move(plan), gather_limits()),
                                   list.slots, listener);
}

std::unique_ptr<HashRun> CudaDevice::make_hash_run(std::vector<std::span<const std::byte>> sources,
                                                   CopyListener& listener) {
  {
    const std::lock_guard lock(queue_.mutex);
    // A kernel would wait for those of the training where all streams share one queue.
    if (!queue_.fingerprint.is_usable() || has_one_queue()) return nullptr;
  }
  const RelaxedCapture relaxed(queue_.driver);
  const CudaScope scope(queue_.driver, queue_.context);
  return std::make_unique<CudaHashRun>(queue_, std::move(sources),
                                       limits_.bytes * hashed_beside_a_batch, listener);
}

bool CudaDevice::skips(const CopyList& list) {
  const std::lock_guard lock(queue_.mutex);
  return list.slots > 0 && queue_.changed_copy.is_usable();
}

GatherLimits CudaDevice::gather_limits() {
  const std::lock_guard lock(queue_.mutex);
  return queue_.gather.limits();
}

Status CudaDevice::synchronize() const {
  CKPT_CHECK(queue_.identity.check());
  const CUresult result = queue_.driver.synchronize_context();
  if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    return fail(Errc::unsupported,
                "restore: a stream of the GPU is being captured into a CUDA graph: call it outside "
                "of the capture");
  return queue_.driver.check(result, "wait for what is queued on the GPU");
}

void CudaDevice::carry_out_quiesce(std::unique_lock<std::mutex>& lock) {
  quiesce_ = Quiesce::running;
  lock.unlock();
  Status status = synchronize();
  lock.lock();
  quiesced_ = std::move(status);
  quiesce_ = Quiesce::none;
  queue_.changed.notify_all();
}

// The driver's call has no deadline, so a thread of our own makes it.
Status CudaDevice::quiesce(Deadline deadline) {
  std::unique_lock lock(queue_.mutex);
  if (quiesce_ == Quiesce::none) quiesce_ = Quiesce::asked;
  queue_.changed.notify_all();
  const bool has_ended =
      queue_.changed.wait_until(lock, deadline, [&] { return quiesce_ == Quiesce::none; });
  if (!has_ended) return fail(Errc::unavailable, "the GPU did not end its work in time");
  if (quiesced_) return {};
  return fail(Error(quiesced_.error()));
}

Status CudaDevice::copy_in(std::byte* target, std::span<const std::byte> source) {
  if (source.empty()) return {};
  CKPT_CHECK(queue_.identity.check());
  const RelaxedCapture relaxed(queue_.driver);
  const CudaScope scope(queue_.driver, queue_.context);
  CKPT_CHECK(scope.status());
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(target));
  return queue_.driver.check(
      queue_.driver.copy_to_device(address, source.data(), source.size(), restore_stream_),
      "queue a copy to the GPU");
}

Status CudaDevice::settle(Deadline deadline) {
  CKPT_CHECK(queue_.identity.check());
  const RelaxedCapture relaxed(queue_.driver);
  const CudaScope scope(queue_.driver, queue_.context);
  CKPT_CHECK(scope.status());
  const CudaDriver& driver = queue_.driver;
  CKPT_CHECK(driver.check(driver.record_event(restored_, restore_stream_),
                          "record an event behind the copies to the GPU"));
  while (true) {
    const CUresult result = driver.query_event(restored_);
    if (result != CUDA_ERROR_NOT_READY) return driver.check(result, "copy to the GPU");
    if (std::chrono::steady_clock::now() >= deadline)
      return fail(Errc::unavailable, "the copies to the GPU did not end in time");
    std::this_thread::sleep_for(settle_poll_interval);
  }
}

}  // namespace ckpt::device
