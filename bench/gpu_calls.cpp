// How long a save holds the trainer, and how long its own small copies wait during a capture.
#include <algorithm>

#include "bench/gpu_parts.hpp"
#include "os/memory_available.hpp"

namespace bench {

using ckpt::test::GpuTrainer;
using std::chrono::steady_clock;

std::size_t large_bytes(const Harness& harness, const GpuTrainer& trainer) {
  const std::size_t host = must(ckpt::os::memory_available()).bytes;
  return std::max(harness.bytes(),
                  std::min({30 * harness.bytes(), trainer.bytes_free() / 4 * 3, host / 3}));
}

namespace {

struct CallTimes {
  std::vector<double> calls_ms;  // One for each save.
  std::vector<double> small_ms;  // One for each small copy of the trainer during captures.
};

struct CallLimits {
  int calls = 100;
  std::chrono::seconds time{90};
};

// Saves, as many as the time allows, with small copies meanwhile.
CallTimes time_calls(GpuTrainer& trainer, GpuState& state, const CallLimits& limits) {
  const auto began_all_at = steady_clock::now();
  CallTimes times;
  SmallCopies small(trainer, state.pins(), stream_of(trainer));
  for (int i = 0; i < limits.calls && steady_clock::now() - began_all_at < limits.time; ++i) {
    const auto began_at = steady_clock::now();
    state.begin();
    times.calls_ms.push_back(milliseconds_since(began_at));
    small.copy_during(state, times.small_ms);
    state.end();
  }
  return times;
}

}  // namespace

bool has_gap(GpuTrainer& trainer, ckpt::GpuGap gap) {
  if (gap != ckpt::GpuGap::write_value) return true;
  std::byte* const word = trainer.allocate(sizeof(std::uint32_t));
  const CUresult result = trainer.driver().write_value(stream_of(trainer), on_gpu(word), 0,
                                                       CU_STREAM_WRITE_VALUE_DEFAULT);
  trainer.free(word);
  if (result != CUDA_ERROR_NOT_SUPPORTED) return true;
  fmt::print("gpu: gpu_gap=write_value skipped: the driver of this GPU does not support it\n");
  return false;
}

// Which gap between batches lets the trainer's own copies through best.
void measure_gaps(Harness& harness, GpuTrainer& trainer) {
  constexpr int calls = 20;
  for (const auto& [gap, name] : gaps) {
    if (!has_gap(trainer, gap)) continue;
    ckpt::device::GpuOptions options;
    options.gap = gap;
    GpuState state(trainer, sizes_like_a_model(harness.bytes()), options);
    const CallTimes times = time_calls(trainer, state, {calls, std::chrono::seconds(10)});
    if (times.small_ms.empty()) continue;
    harness.sample({.id = "G6 " + std::string(name),
                    .what = fmt::format("the same with gpu_gap={} and less state", name),
                    .excellent = 2,
                    .floor = 5,
                    .better = Better::lower,
                    .unit = "ms",
                    .is_judged = false},
                   0.99, times.small_ms);
  }
}

void measure_calls(Harness& harness, GpuTrainer& trainer) {
  GpuState state(trainer, sizes_like_a_model(large_bytes(harness, trainer)));
  harness.add_condition(fmt::format("G4 to G6 with {} tensors of {:.1f} GB", state.places.size(),
                                    static_cast<double>(state.bytes) / 1e9));
  // The time is for links that are slow; a p99 of fewer calls then.
  const auto [calls_ms, small_ms] = time_calls(trainer, state, {});
  const auto lower = Better::lower;
  harness.sample({"G4", "what a save holds the trainer, median", 2, 10, lower, "ms"}, 0.5,
                 calls_ms);
  harness.sample({"G4b", "what a save holds the trainer, p99", 5, 10, lower, "ms"}, 0.99, calls_ms);
  if (!small_ms.empty())
    harness.sample({"G6", "4 bytes to the host during a capture, p99", 2, 5, lower, "ms"}, 0.99,
                   small_ms);
}

}  // namespace bench
