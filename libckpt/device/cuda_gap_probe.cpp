#include "device/cuda_gap_probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/units.hpp"
#include "device/cuda_kernel.hpp"
#include "device/gap_choice.hpp"
#include "os/small_file.hpp"

namespace ckpt::device {

namespace {

using std::chrono::steady_clock;

// The cheapest first.
constexpr std::array gaps = {GpuGap::none, GpuGap::write_value, GpuGap::copy, GpuGap::memset};
constexpr int rounds = 3;  // The median of each.

// 48 MiB in all, a millisecond of a PCIe 5 link.
constexpr std::size_t batch_bytes = 8 * MiB;
constexpr int batches = 6;
// Each takes some 13 microseconds of an H100. As many as outlast the copies; a stream has room for
// a thousand.
constexpr std::size_t kernel_words = 32 * MiB / sizeof(std::uint32_t);
constexpr std::chrono::milliseconds busy_time{4};
constexpr std::int64_t kernels_max = 400;

constexpr std::chrono::seconds probe_deadline{2};  // Far more than it takes: the GPU hangs.
constexpr std::size_t cache_bytes_max = 64 * KiB;
constexpr int name_bytes_max = 256;

class GapProbe {
 public:
  explicit GapProbe(CudaQueue& queue) : queue_(queue), driver_(queue.driver) {}
  ~GapProbe();
  GapProbe(const GapProbe&) = delete;
  GapProbe& operator=(const GapProbe&) = delete;

  Status open();
  Result<std::vector<GapFigures>> measure();

 private:
  Status count_kernels();
  Status queue_kernel();
  Result<GapFigures> measure_once(GpuGap gap);
  Status queue_batches(GpuGap gap);
  Result<bool> has_ended(CUevent event) const;
  // The time until 4 bytes of the trainer's have come.
  Result<std::chrono::nanoseconds> time_small_copy();
  Status drain();

  CudaQueue& queue_;
  const CudaDriver& driver_;
  const steady_clock::time_point deadline_ = steady_clock::now() + probe_deadline;
  CUdeviceptr source_ = 0;
  CUdeviceptr busy_words_ = 0;
  void* target_ = nullptr;
  CUstream busy_ = nullptr;
  CUstream small_ = nullptr;
  CUevent copied_ = nullptr;
  CUevent small_copied_ = nullptr;
  CUevent busy_ended_ = nullptr;
  std::int64_t kernels_ = 1;
  bool is_drained_ = true;
};

// Queued copies may still read and write the memory. Where their end cannot be seen, the memory
// stays for the life of the context.
GapProbe::~GapProbe() {
  if (!is_drained_) (void)drain();
  for (const CUevent event : {copied_, small_copied_, busy_ended_})
    if (event != nullptr) (void)driver_.destroy_event(event);
  for (const CUstream stream : {busy_, small_})
    if (stream != nullptr) (void)driver_.destroy_stream(stream);
  if (!is_drained_) return;
  for (const CUdeviceptr memory : {source_, busy_words_})
    if (memory != 0) (void)driver_.free(memory);
  if (target_ != nullptr) (void)driver_.free_host(target_);
}

Status GapProbe::open() {
  const auto check = [&](CUresult result) { return driver_.check(result, "prepare to measure"); };
  CKPT_CHECK(check(driver_.allocate(&source_, batch_bytes)));
  CKPT_CHECK(check(driver_.allocate(&busy_words_, kernel_words * sizeof(std::uint32_t))));
  CKPT_CHECK(
      check(driver_.allocate_host(&target_, batch_bytes + page_bytes, CU_MEMHOSTALLOC_PORTABLE)));
  for (CUstream* stream : {&busy_, &small_})
    CKPT_CHECK(check(driver_.create_stream(stream, CU_STREAM_NON_BLOCKING)));
  for (CUevent* event : {&copied_, &small_copied_, &busy_ended_})
    CKPT_CHECK(check(driver_.create_event(event, CU_EVENT_DISABLE_TIMING)));
  return {};
}

Status GapProbe::queue_batches(GpuGap gap) {
  for (int batch = 0; batch < batches; ++batch) {
    if (batch > 0) CKPT_CHECK(driver_.check(queue_.try_gap(gap), "queue a gap"));
    CKPT_CHECK(
        driver_.check(driver_.copy_to_host(target_, source_, batch_bytes, queue_.stream), "copy"));
  }
  return driver_.check(driver_.record_event(copied_, queue_.stream), "record an event");
}

Result<bool> GapProbe::has_ended(CUevent event) const {
  const CUresult result = driver_.query_event(event);
  if (result == CUDA_SUCCESS) return true;
  if (result != CUDA_ERROR_NOT_READY)
    return fail(driver_.check(result, "ask for the end of a copy").error());
  if (steady_clock::now() < deadline_) return false;
  return fail(Errc::unavailable, "the copies did not end in time");
}

Result<std::chrono::nanoseconds> GapProbe::time_small_copy() {
  const auto began_at = steady_clock::now();
  auto* const word = static_cast<std::byte*>(target_) + batch_bytes;
  CKPT_CHECK(driver_.check(driver_.copy_to_host(word, busy_words_, sizeof(std::uint32_t), small_),
                           "copy a word"));
  CKPT_CHECK(driver_.check(driver_.record_event(small_copied_, small_), "record an event"));
  while (true) {
    CKPT_TRY(const bool is_here, has_ended(small_copied_));
    if (is_here) return std::chrono::nanoseconds(steady_clock::now() - began_at);
  }
}

Status GapProbe::drain() {
  const std::pair<CUevent, CUstream> ends[] = {
      {copied_, queue_.stream}, {busy_ended_, busy_}, {small_copied_, small_}};
  for (const auto& [event, stream] : ends)
    CKPT_CHECK(driver_.check(driver_.record_event(event, stream), "record an event"));
  for (const auto& [event, stream] : ends) {
    bool is_over = false;
    while (!is_over) {
      CKPT_TRY(is_over, has_ended(event));
    }
  }
  is_drained_ = true;
  return {};
}

Status GapProbe::queue_kernel() {
  return driver_.check(driver_.set_words(busy_words_, 0, kernel_words, busy_), "keep it busy");
}

Status GapProbe::count_kernels() {
  CKPT_CHECK(measure_once(GpuGap::none));  // The first work of a stream is slow.
  const auto began_at = steady_clock::now();
  is_drained_ = false;
  CKPT_CHECK(queue_kernel());
  CKPT_CHECK(drain());
  const auto took =
      std::max<steady_clock::duration>(steady_clock::now() - began_at, std::chrono::nanoseconds(1));
  kernels_ = std::clamp<std::int64_t>(busy_time / took, 1, kernels_max);
  return {};
}

Result<GapFigures> GapProbe::measure_once(GpuGap gap) {
  GapFigures figures;
  figures.gap = gap;
  is_drained_ = false;
  for (std::int64_t kernel = 0; kernel < kernels_; ++kernel) CKPT_CHECK(queue_kernel());
  const auto began_at = steady_clock::now();
  CKPT_CHECK(queue_batches(gap));
  bool is_over = false;
  while (!is_over) {
    CKPT_TRY(const auto wait, time_small_copy());
    figures.wait = std::max(figures.wait, wait);
    CKPT_TRY(is_over, has_ended(copied_));
  }
  figures.copies = steady_clock::now() - began_at;
  CKPT_CHECK(drain());
  return figures;
}

Result<std::vector<GapFigures>> GapProbe::measure() {
  std::vector<GapFigures> measured;
  CKPT_CHECK(count_kernels());
  for (const GpuGap gap : gaps) {
    is_drained_ = false;
    if (queue_.try_gap(gap) == CUDA_ERROR_NOT_SUPPORTED) continue;
    std::array<GapFigures, rounds> of_gap;
    for (GapFigures& one : of_gap) {
      CKPT_TRY(one, measure_once(gap));
    }
    std::ranges::sort(of_gap, {}, &GapFigures::wait);
    measured.push_back(of_gap[rounds / 2]);
  }
  return measured;
}

// The same GPU and driver with another number of hardware queues is another machine.
std::string key_of(const CudaDriver& driver, CUdevice device) {
  std::array<char, name_bytes_max> name{};
  if (driver.device_name(name.data(), name_bytes_max - 1, device) != CUDA_SUCCESS) return {};
  const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  std::string key = fmt::format("{}, driver {}, connections {}", name.data(), driver.version,
                                connections != nullptr ? connections : "default");
  std::ranges::replace_if(key, [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return key;
}

Result<GpuGap> measured_gap(CudaQueue& queue) {
  GapProbe probe(queue);
  CKPT_CHECK(probe.open());
  CKPT_TRY(const auto measured, probe.measure());
  const GpuGap best = choose_gap(measured);
  std::string figures;
  for (const GapFigures& each : measured)
    figures += fmt::format("{}{} {:.2f} ms of {:.2f}", figures.empty() ? "" : ", ",
                           name_of(each.gap), static_cast<double>(each.wait.count()) / 1e6,
                           static_cast<double>(each.copies.count()) / 1e6);
  log_info("gpu_gap=auto is {} on this GPU; a small copy waits: {}", name_of(best), figures);
  return best;
}

}  // namespace

GpuGap find_gap(CudaQueue& queue, CUdevice device, const std::string& cache) {
  const std::string key = key_of(queue.driver, device);
  const bool is_kept = !cache.empty() && !key.empty();
  std::string text;
  if (auto kept = is_kept ? os::read_file(cache, cache_bytes_max) : Result<std::string>(text))
    text = std::move(*kept);
  if (const auto gap = cached_gap(text, key); is_kept && gap) return *gap;
  const auto measured = measured_gap(queue);
  if (!measured) {
    const GpuGap unmeasured = usual_gap(has_one_queue());
    log_info("gpu_gap=auto is {}, as nothing could be measured: {}", name_of(unmeasured),
             measured.error().message());
    return unmeasured;
  }
  // A cache that cannot be written costs a measurement the next time, and nothing else.
  if (is_kept) (void)os::replace_file(cache, with_gap(text, key, *measured));
  return *measured;
}

}  // namespace ckpt::device
