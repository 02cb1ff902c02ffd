// Registration, the GPU's own memory, and restores.
#include <algorithm>
#include <atomic>
#include <thread>

#include "bench/gpu_parts.hpp"

namespace bench {

using ckpt::GiB;
using ckpt::MiB;
using ckpt::test::GpuTrainer;
using std::chrono::steady_clock;

namespace {

constexpr std::size_t repeats = 7;  // As many as the harness judges by.

// Launcher: a thread that launches small work all the time, as a training loop does. Its longest
// call shows how long others hold the driver's lock.
class Launcher {
 public:
  explicit Launcher(GpuTrainer& trainer)
      : trainer_(trainer), word_(trainer.allocate(sizeof(std::uint32_t))) {
    thread_ = std::thread([this] { run(); });
  }
  ~Launcher() {
    (void)stop();
    trainer_.free(word_);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  double stop() {  // Milliseconds of its longest call.
    is_over_ = true;
    if (thread_.joinable()) thread_.join();
    return longest_ms_;
  }

 private:
  void run() {
    const ckpt::device::CudaScope scope(trainer_.driver(), trainer_.context());
    CUstream stream = nullptr;
    check(trainer_.driver().create_stream(&stream, CU_STREAM_NON_BLOCKING));
    while (!is_over_) {
      const auto began_at = steady_clock::now();
      check(trainer_.driver().set_words(on_gpu(word_), 1, 1, stream));
      longest_ms_ = std::max(longest_ms_, milliseconds_since(began_at));
      while (trainer_.driver().query_stream(stream) == CUDA_ERROR_NOT_READY) {
      }
    }
    check(trainer_.driver().destroy_stream(stream));
  }

  GpuTrainer& trainer_;
  std::byte* word_;
  std::atomic<bool> is_over_{false};
  double longest_ms_ = 0;
  std::thread thread_;
};

struct Registration {
  const char* id;
  const char* what;
  std::uint64_t piece_bytes;
  bool has_huge_pages;
};

void measure_registration(Harness& harness, GpuTrainer& trainer, const Registration& which,
                          bool is_judged) {
  const std::size_t bytes = std::min<std::size_t>(GiB, harness.bytes());
  const auto pins = std::make_shared<ckpt::device::MemoryPins>();
  ckpt::device::GpuOptions options;
  options.pin_piece_bytes = which.piece_bytes;
  const auto gpus = must(ckpt::device::Gpus::open(options, pins));
  std::byte* const word = trainer.allocate(sizeof(std::uint32_t));
  (void)must(gpus->device_of(word, 0));
  std::vector<double> seconds_per_gb;
  std::vector<double> longest_ms;
  for (std::size_t i = 0; i < repeats; ++i) {
    const PinnedMemory quiet(*pins, bytes, which.has_huge_pages);
    seconds_per_gb.push_back(quiet.took.count() / (static_cast<double>(bytes) / 1e9));
    Launcher launcher(trainer);
    const PinnedMemory beside(*pins, bytes, which.has_huge_pages);
    longest_ms.push_back(launcher.stop());
  }
  pins->stop();
  const Bar bar{which.id, which.what, 0.12, 0.25, Better::lower, "s/GB", is_judged};
  harness.sample(bar, 0.5, seconds_per_gb);
  harness.sample({fmt::format("{} launch", which.id), "the longest launch meanwhile", 0, 0,
                  Better::lower, "ms"},
                 0.5, longest_ms);
}

double mib_used_more(const GpuTrainer& trainer, std::size_t before) {
  const std::size_t used = trainer.bytes_used();
  return static_cast<double>(used - std::min(used, before)) / static_cast<double>(MiB);
}

}  // namespace

void measure_memory(Harness& harness, GpuTrainer& trainer) {
  constexpr Registration registrations[] = {
      {"G8", "registration of touched memory, 256 MiB at a time", 256 * MiB, true},
      {"G8 64", "the same, 64 MiB at a time", 64 * MiB, true},
      {"G8 1G", "the same, 1 GiB at a time", 1 * GiB, true},
      {"G8 4K", "the same, without huge pages", 256 * MiB, false},
  };
  for (const Registration& each : registrations)
    measure_registration(harness, trainer, each, &each == registrations);
  std::byte* const word = trainer.allocate(sizeof(std::uint32_t));
  std::vector<double> opened_mib;
  for (std::size_t i = 0; i < repeats; ++i) {
    const std::size_t before = trainer.bytes_used();
    const auto gpus =
        must(ckpt::device::Gpus::open({}, std::make_shared<ckpt::device::MemoryPins>()));
    (void)must(gpus->device_of(word, 0));
    opened_mib.push_back(mib_used_more(trainer, before));
  }
  const Bar bar{"G13", "memory of the GPU that captures use", 64, 256, Better::lower, "MiB"};
  harness.sample(bar, 0.5, opened_mib);
  const std::size_t before = trainer.bytes_used();
  GpuState state(trainer, sizes_like_a_model(harness.bytes()));
  state.begin();
  state.end();
  const double own_mib = static_cast<double>(state.bytes) / static_cast<double>(MiB);
  harness.sample({"G13b", "the same after a capture, without the tensors", 64, 256, Better::lower,
                  "MiB", false},
                 0.5, {std::max(0.0, mib_used_more(trainer, before) - own_mib)});
}

void measure_restore(Harness& harness, GpuTrainer& trainer) {
  GpuState state(trainer, sizes_like_a_model(harness.bytes()));
  state.begin();
  state.end();
  const auto record = state.record();
  const auto plan = must(ckpt::snapshot::plan_restore(record, state.targets));
  // As a trainer has them.
  ckpt::device::CopyThreads threads(ckpt::snapshot::restore_threads(ckpt::Options{}.copy_threads));
  const auto restore = [&] {
    return rate(static_cast<double>(state.bytes), [&] {
      must(ckpt::snapshot::restore_tensors(
          record, state.slot->bytes(), plan,
          {state.devices, threads, steady_clock::now() + std::chrono::minutes(1)}));
    });
  };
  Raw raw(trainer, std::min<std::size_t>(GiB, harness.bytes()));
  harness.compare({"G9", "restore, verified / raw copy to the GPU", 0.92, 0.80}, restore,
                  [&] { return raw.to_device(); });
}

}  // namespace bench
