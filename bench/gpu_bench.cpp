// Captures and restores of tensors on a GPU against the rate of its link, the raw peaks first.
//
// Without a GPU it reports that and measures nothing.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "bench/gpu_gemm.hpp"
#include "bench/gpu_state.hpp"
#include "bench/harness.hpp"
#include "os/memory_available.hpp"

namespace {

using bench::GpuState;
using ckpt::GiB;
using ckpt::KiB;
using ckpt::MiB;
using ckpt::test::GpuTrainer;
using std::chrono::steady_clock;

constexpr std::size_t figures = 17;
constexpr std::size_t repeats = 7;  // Without a comparison: as many as the harness judges by.

double milliseconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - begin).count();
}

CUdeviceptr on_gpu(const std::byte* address) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
}

void check(CUresult result) {
  if (result != CUDA_SUCCESS)
    bench::give_up(fmt::format("CUDA error {}", static_cast<int>(result)));
}

// Raw: the link itself, from one buffer on the GPU to pinned memory and back.
class Raw {
 public:
  Raw(GpuTrainer& trainer, ckpt::device::MemoryPins& pins, std::size_t bytes)
      : trainer_(trainer), host_(pins, bytes), gpu_(trainer.allocate(bytes)), bytes_(bytes) {
    trainer_.fill(gpu_, 1, bytes / sizeof(std::uint32_t));
    trainer_.synchronize();
  }
  double to_host() {
    return bench::rate(static_cast<double>(bytes_), [&] {
      check(trainer_.driver().copy_to_host(host_.bytes().data(), on_gpu(gpu_), bytes_, stream()));
      trainer_.spin();
    });
  }
  double to_device() {
    return bench::rate(static_cast<double>(bytes_), [&] {
      check(trainer_.driver().copy_to_device(on_gpu(gpu_), host_.bytes().data(), bytes_, stream()));
      trainer_.spin();
    });
  }
  CUstream stream() const { return static_cast<CUstream>(trainer_.stream().handle); }

 private:
  GpuTrainer& trainer_;
  bench::PinnedMemory host_;
  std::byte* gpu_;
  std::size_t bytes_;
};

double capture_rate(GpuState& state) {
  return bench::rate(static_cast<double>(state.bytes), [&] {
    state.begin();
    state.end();
  });
}

std::vector<std::size_t> sizes_like_a_model(std::size_t bytes) {
  // Like a transformer's layer: norms, biases, projections, and now and then an embedding.
  constexpr std::size_t layer[] = {16 * KiB, 16 * KiB,  48 * KiB,  96 * MiB, 32 * MiB,
                                   64 * KiB, 128 * MiB, 128 * MiB, 16 * KiB, 2 * MiB};
  std::vector<std::size_t> sizes;
  for (std::size_t total = 0, i = 0; total < bytes; ++i) {
    sizes.push_back(std::min(layer[i % std::size(layer)], std::max(bytes / 4, 4 * KiB)));
    total += sizes.back();
  }
  return sizes;
}

// Load: the daemon's work on the Slots of earlier captures. One thread hashes, and one writes past
// the page cache if the directory supports that.
class Load {
 public:
  Load(const std::string& directory, std::span<const std::byte> slot) : slot_(slot) {
    std::error_code ignored;
    std::filesystem::create_directories(directory, ignored);
    path_ = directory + "/gpu_bench." + std::to_string(::getpid());
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0600);
    if (fd_ >= 0) writer_ = std::thread([this] { write(); });
    hashes_ = std::thread([this] { hash(); });
  }
  ~Load() {
    is_over_ = true;
    hashes_.join();
    if (writer_.joinable()) writer_.join();
    if (fd_ >= 0) ::close(fd_);
    ::unlink(path_.c_str());
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  bool writes() const { return fd_ >= 0; }

 private:
  static constexpr std::size_t block = 4 * MiB;
  static constexpr std::size_t file_bytes = 256 * MiB;  // Written over and over.

  void hash() {
    while (!is_over_)
      for (std::size_t at = 0; at + block <= slot_.size() && !is_over_; at += block)
        sum_ = ckpt::crc32(slot_.subspan(at, block));
  }
  void write() {
    for (std::size_t at = 0; !is_over_ && slot_.size() >= block; at = (at + block) % file_bytes)
      if (::pwrite(fd_, slot_.data(), block, static_cast<off_t>(at)) < 0) return;
  }

  const std::span<const std::byte> slot_;
  std::string path_;
  int fd_ = -1;
  std::atomic<bool> is_over_{false};
  ckpt::Crc32 sum_{};
  std::thread hashes_, writer_;
};

void measure_copies(bench::Harness& harness, GpuTrainer& trainer, Raw& raw) {
  const auto peak = [&] { return raw.to_host(); };
  {
    GpuState flat(trainer, std::vector<std::size_t>(
                               std::max<std::size_t>(harness.bytes() / (64 * MiB), 1), 64 * MiB));
    harness.compare(
        {"G1", "capture of flat 64 MiB tensors / raw copy", 0.97, 0.92},
        [&] { return capture_rate(flat); }, peak);
    const bench::PinnedMemory before(flat.pins(), std::min<std::size_t>(harness.bytes(), GiB));
    bool has_written = false;
    const auto under_load = [&] {
      const Load load(harness.directory(), before.bytes());
      has_written = load.writes();
      return capture_rate(flat);
    };
    harness.compare({"G10", "capture while others hash and write / alone", 0.92, 0.85}, under_load,
                    [&] { return capture_rate(flat); });
    if (!has_written) harness.add_condition("G10 without a writer: the directory takes none");
  }
  {
    GpuState model(trainer, sizes_like_a_model(harness.bytes()));
    harness.compare(
        {"G2", "capture of a model's tensors / raw copy", 0.93, 0.85},
        [&] { return capture_rate(model); }, peak);
  }
  const std::size_t count = std::min<std::size_t>(20'000, harness.bytes() / (32 * KiB));
  GpuState small(trainer, std::vector<std::size_t>(count, 32 * KiB));
  harness.compare(
      {"G3", fmt::format("capture of {} tensors of 32 KiB / raw copy", count), 0.60, 0.35},
      [&] { return capture_rate(small); }, peak);
  const auto one_by_one = [&] {
    return bench::rate(static_cast<double>(small.bytes), [&] {
      for (std::size_t i = 0; i < small.places.size(); ++i) {
        check(trainer.driver().copy_to_host(small.slot->bytes().data() + i * 32 * KiB,
                                            on_gpu(small.places[i]), 32 * KiB, raw.stream()));
        trainer.spin();
      }
    });
  };
  harness.compare(
      {"G3b", "the same / one copy and one wait for each", 3.0, 1.5},
      [&] { return capture_rate(small); }, one_by_one);
}

// The bars are for 30 GB: thirty times the requested size, if there is room on the GPU and, for the
// Slot, on the host beside everything else.
std::size_t large_bytes(const bench::Harness& harness, const GpuTrainer& trainer) {
  const std::size_t host = bench::must(ckpt::os::memory_available()).bytes;
  return std::max(harness.bytes(),
                  std::min({30 * harness.bytes(), trainer.bytes_free() / 4 * 3, host / 3}));
}

struct CallTimes {
  std::vector<double> calls_ms;  // For each save.
  std::vector<double> small_ms;  // The trainer's own small copies during captures.
};

CallTimes time_calls(GpuTrainer& trainer, GpuState& state, int calls,
                     std::chrono::seconds time_max) {
  const auto began_all_at = steady_clock::now();
  CallTimes times;
  bench::PinnedMemory word(state.pins(), ckpt::page_bytes);
  std::byte* const source = trainer.allocate(sizeof(std::uint32_t));
  const auto stream = static_cast<CUstream>(trainer.stream().handle);
  for (int i = 0; i < calls && steady_clock::now() - began_all_at < time_max; ++i) {
    const auto began_at = steady_clock::now();
    state.begin();
    times.calls_ms.push_back(milliseconds_since(began_at));
    while (state.snapshotter->is_running()) {
      const auto asked_at = steady_clock::now();
      check(trainer.driver().copy_to_host(word.bytes().data(), on_gpu(source), 4, stream));
      trainer.spin();
      times.small_ms.push_back(milliseconds_since(asked_at));
    }
    state.end();
  }
  return times;
}

// Which gap between batches lets the trainer's own copies through best.
void measure_gaps(bench::Harness& harness, GpuTrainer& trainer) {
  constexpr int calls = 20;
  constexpr std::pair<ckpt::GpuGap, const char*> gaps[] = {
      {ckpt::GpuGap::none, "none"},
      {ckpt::GpuGap::memset, "memset"},
      {ckpt::GpuGap::write_value, "write_value"},
      {ckpt::GpuGap::copy, "copy"},
  };
  for (const auto& [gap, name] : gaps) {
    GpuState state(trainer, sizes_like_a_model(harness.bytes()), gap);
    const CallTimes times = time_calls(trainer, state, calls, std::chrono::seconds(10));
    if (times.small_ms.empty()) continue;
    harness.sample({.id = "G6 " + std::string(name),
                    .what = fmt::format("the same with gpu_gap={} and less state", name),
                    .excellent = 2,
                    .floor = 5,
                    .better = bench::Better::lower,
                    .unit = "ms",
                    .is_judged = false},
                   0.99, times.small_ms);
  }
}

void measure_calls(bench::Harness& harness, GpuTrainer& trainer) {
  GpuState state(trainer, sizes_like_a_model(large_bytes(harness, trainer)));
  harness.add_condition(fmt::format("G4 to G6 with {} tensors of {:.1f} GB", state.places.size(),
                                    static_cast<double>(state.bytes) / 1e9));
  // The time is for links that are slow; a p99 of fewer calls then.
  const auto [calls_ms, small_ms] = time_calls(trainer, state, 100, std::chrono::seconds(90));
  const auto lower = bench::Better::lower;
  harness.sample({"G4", "what a save holds the trainer, median", 2, 10, lower, "ms"}, 0.5,
                 calls_ms);
  harness.sample({"G4b", "what a save holds the trainer, p99", 5, 10, lower, "ms"}, 0.99, calls_ms);
  if (!small_ms.empty())
    harness.sample({"G6", "4 bytes to the host during a capture, p99", 2, 5, lower, "ms"}, 0.99,
                   small_ms);
}

// Training: steps of some products each, with or without a capture in each.
class Training {
 public:
  explicit Training(const bench::Harness& harness, GpuTrainer& trainer)
      : trainer_(trainer), gemm_(trainer), state_(trainer, sizes_like_a_model(harness.bytes())) {
    product_ms_ = gemm_.milliseconds();
    for (int i = 0; i < 3; ++i) {  // The last one counts: all is warm by then.
      const auto began_at = steady_clock::now();
      state_.begin();
      state_.end();
      capture_ms_ = milliseconds_since(began_at);
    }
  }

  const std::string& kind() const { return gemm_.kind(); }
  double capture_ms() const { return capture_ms_; }
  // Enough products that a capture takes `share` of their time.
  int products_for(double share) const {
    return static_cast<int>(capture_ms_ / share / product_ms_) + 1;
  }
  double steps_per_second(int products, bool with_captures) {
    constexpr int steps = 20;
    return bench::rate(steps, [&] {
      for (int i = 0; i < steps; ++i) {
        gemm_.compute(products);  // Forward and backward.
        if (with_captures && i > 0) state_.end();
        trainer_.fill(state_.places.front(), 7, 1);  // The update.
        if (with_captures) state_.begin();
      }
      trainer_.spin();
      if (with_captures) state_.end();
    });
  }

 private:
  GpuTrainer& trainer_;
  bench::GpuGemm gemm_;
  GpuState state_;
  double product_ms_ = 0;
  double capture_ms_ = 0;
};

void measure_steps(bench::Harness& harness, GpuTrainer& trainer) {
  Training training(harness, trainer);
  harness.add_condition(training.kind());
  const int enough = training.products_for(0.8);
  harness.compare(
      {"G5", "steps with a capture each / without", 0.98, 0.95},
      [&] { return training.steps_per_second(enough, true); },
      [&] { return training.steps_per_second(enough, false); });
  // Too few to hide the copies: compares the visible time with the unavoidable time.
  const int few = std::max(1, training.products_for(2.0));
  std::vector<double> seen;
  for (std::size_t pair = 0; pair < harness.pairs(); ++pair) {
    const double with_ms = 1000 / training.steps_per_second(few, true);
    const double window_ms = 1000 / training.steps_per_second(few, false);
    if (training.capture_ms() > window_ms)
      seen.push_back((with_ms - window_ms) / (training.capture_ms() - window_ms));
  }
  if (!seen.empty())
    harness.sample({"G5b", "time that copies show / time that does not fit", 1.05, 1.2,
                    bench::Better::lower, "x"},
                   0.5, seen);
}

void measure_restore(bench::Harness& harness, GpuTrainer& trainer, Raw& raw) {
  GpuState state(trainer, sizes_like_a_model(harness.bytes()));
  state.begin();
  state.end();
  const auto record = state.record();
  const auto plan = bench::must(ckpt::snapshot::plan_restore(record, state.targets));
  const auto restore = [&] {
    return bench::rate(static_cast<double>(state.bytes), [&] {
      bench::must(ckpt::snapshot::restore_tensors(
          record, state.slot->bytes(), plan,
          {state.devices, state.threads(), steady_clock::now() + std::chrono::minutes(1)}));
    });
  };
  harness.compare({"G9", "restore, verified / raw copy to the GPU", 0.92, 0.80}, restore,
                  [&] { return raw.to_device(); });
}

}  // namespace

int main(int argc, char** argv) {
  auto opened = GpuTrainer::open();
  if (!opened) {
    fmt::print("gpu: {} figures skipped: {}\n", figures, opened.error().message());
    return 0;
  }
  bench::Harness harness("gpu", argc, argv);
  GpuTrainer& trainer = **opened;
  std::byte* const word = trainer.allocate(sizeof(std::uint32_t));
  std::vector<double> extra_mib;
  for (std::size_t i = 0; i < repeats; ++i) {
    const std::size_t used_before = trainer.bytes_used();
    const auto gpus =
        bench::must(ckpt::device::Gpus::open({}, std::make_shared<ckpt::device::MemoryPins>()));
    (void)bench::must(gpus->device_of(word, 0));
    const std::size_t used = trainer.bytes_used();
    extra_mib.push_back(static_cast<double>(used - std::min(used, used_before)) /
                        static_cast<double>(MiB));
  }
  auto pins = std::make_shared<ckpt::device::MemoryPins>();
  auto gpus = bench::must(ckpt::device::Gpus::open({}, pins));
  (void)bench::must(gpus->device_of(word, 0));
  {
    Raw raw(trainer, *pins, std::min<std::size_t>(GiB, harness.bytes()));
    fmt::print("raw: {:.1f} GB/s to the host, {:.1f} GB/s to the GPU\n", raw.to_host() / 1e9,
               raw.to_device() / 1e9);
    const auto lower = bench::Better::lower;
    std::vector<double> seconds_per_gb;
    for (std::size_t i = 0; i < repeats; ++i) {
      const std::size_t bytes = std::min<std::size_t>(GiB, harness.bytes());
      const bench::PinnedMemory memory(*pins, bytes);
      seconds_per_gb.push_back(memory.took.count() / (static_cast<double>(bytes) / 1e9));
    }
    harness.sample({"G8", "registration of touched memory", 0.12, 0.25, lower, "s/GB"}, 0.5,
                   seconds_per_gb);
    harness.sample({"G13", "memory of the GPU that captures use", 64, 256, lower, "MiB"}, 0.5,
                   extra_mib);
    measure_copies(harness, trainer, raw);
    measure_calls(harness, trainer);
    measure_gaps(harness, trainer);
    measure_steps(harness, trainer);
    measure_restore(harness, trainer, raw);
  }
  pins->stop();
  return harness.finish();
}
