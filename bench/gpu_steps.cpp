// Steps of training with and without captures: with the guard's wait on the GPU, for each gap, and
// beside kernels that stay.
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "bench/gpu_gemm.hpp"
#include "bench/gpu_parts.hpp"

namespace bench {

using ckpt::GpuGap;
using ckpt::test::GpuTrainer;
using std::chrono::steady_clock;

namespace {

struct Shape {
  std::size_t bytes = 0;
  std::size_t tensors = 0;  // Two thirds of them small; 0: as a model has them.
  ckpt::device::GpuOptions options = as_in_a_trainer();
  bool has_kernel_that_stays = false;  // On another stream, as long as a step.
  int steps = 20;
};

// Training: steps of some products each, with or without a capture in each. A step ends when its
// loss has come to the host, as in most loops; the update waits for the copies on the GPU.
class Training {
 public:
  Training(GpuTrainer& trainer, const Shape& shape)
      : trainer_(trainer),
        shape_(shape),
        gemm_(trainer),
        state_(trainer,
               shape.tensors > 0 ? sizes_of_many(shape.bytes, shape.tensors)
                                 : sizes_like_a_model(shape.bytes),
               shape.options) {
    check(trainer.driver().create_stream(&other_, CU_STREAM_NON_BLOCKING));
    product_ms_ = gemm_.milliseconds();
    for (int i = 0; i < 3; ++i) {  // The last one counts: all is warm by then.
      const auto began_at = steady_clock::now();
      state_.begin();
      state_.end();
      capture_ms_ = milliseconds_since(began_at);
    }
  }
  ~Training() { (void)trainer_.driver().destroy_stream(other_); }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  const std::string& kind() const { return gemm_.kind(); }
  double capture_ms() const { return capture_ms_; }
  // Enough products that a capture takes `share` of their time.
  int products_for(double share) const {
    return std::max(1, static_cast<int>(capture_ms_ / share / product_ms_));
  }
  double steps_per_second(int products, bool with_captures) {
    const double found = rate(shape_.steps, [&] {
      for (int i = 0; i < shape_.steps; ++i) step(products, with_captures);
      if (with_captures) state_.end();
    });
    trainer_.spin(other_);
    return found;
  }

 private:
  void step(int products, bool with_captures) {
    if (with_captures) {
      state_.end();  // The step before has waited for these copies: nothing is left to wait for.
      state_.begin();
    }
    if (shape_.has_kernel_that_stays)
      gemm_.stay(other_, std::chrono::milliseconds(1 + static_cast<int>(products * product_ms_)));
    gemm_.compute(products);  // Forward and backward.
    if (with_captures) state_.guard();
    trainer_.fill(state_.places.front(), 7, 1);  // The update.
    trainer_.spin();                             // Its loss.
  }

  GpuTrainer& trainer_;
  const Shape shape_;
  GpuGemm gemm_;
  GpuState state_;
  CUstream other_ = nullptr;
  double product_ms_ = 0;
  double capture_ms_ = 0;
};

// How much the copies add to a step, by the part of them that does not fit into it.
std::vector<double> visible_times(Training& training, std::size_t pairs) {
  const int few = training.products_for(2.0);  // Too few to hide the copies.
  std::vector<double> seen;
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const double with_ms = 1000 / training.steps_per_second(few, true);
    const double window_ms = 1000 / training.steps_per_second(few, false);
    if (training.capture_ms() > window_ms)
      seen.push_back((with_ms - window_ms) / (training.capture_ms() - window_ms));
  }
  return seen;
}

std::string connections() {
  const char* const set = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return set != nullptr ? fmt::format("connections={}", set) : "";
}

// Less state and fewer steps than G5, since there are many of them; shown, not judged.
void measure_shape(Harness& harness, GpuTrainer& trainer, Shape shape, const std::string& name) {
  constexpr std::size_t pairs = 3;
  shape.bytes = std::max(harness.bytes() / 4, ckpt::MiB);
  shape.steps = 10;
  Training training(trainer, shape);
  const int enough = training.products_for(0.8);
  std::vector<double> ratios;
  for (std::size_t pair = 0; pair < pairs; ++pair)
    ratios.push_back(training.steps_per_second(enough, true) /
                     training.steps_per_second(enough, false));
  const std::string what = fmt::format("{} {}", name, connections());
  harness.sample({"G5 " + name, "steps with a capture each / without, " + what, 0.98, 0.95,
                  Better::higher, "", false},
                 0.5, ratios);
  const auto seen = visible_times(training, pairs);
  if (!seen.empty())
    harness.sample({"G5b " + name, "time that copies show / that does not fit, " + what, 1.05, 1.2,
                    Better::lower, "x", false},
                   0.5, seen);
}

// The trainer's own small copies, on a stream of their own, while its products run.
void measure_small_copies(Harness& harness, GpuTrainer& trainer, GpuGap gap, const char* name) {
  constexpr double busy_ms = 20;
  ckpt::device::GpuOptions options;
  options.gap = gap;
  GpuState state(trainer, sizes_like_a_model(std::max(harness.bytes() / 4, ckpt::MiB)), options);
  GpuGemm gemm(trainer);
  const double product_ms = gemm.milliseconds();
  CUstream small = nullptr;
  check(trainer.driver().create_stream(&small, CU_STREAM_NON_BLOCKING));
  std::vector<double> small_ms;
  {
    SmallCopies copies(trainer, state.pins(), small);
    for (int i = 0; i < 5; ++i) {
      state.begin();
      gemm.compute(static_cast<int>(busy_ms / product_ms) + 1);  // Queued behind the capture.
      copies.copy_during(state, small_ms);
      state.end();
      trainer.spin();
    }
  }
  check(trainer.driver().destroy_stream(small));
  if (small_ms.empty()) return;
  harness.sample(
      {fmt::format("G6 {} busy", name),
       fmt::format("4 bytes to the host during a capture and products, p99, {}", connections()), 2,
       5, Better::lower, "ms", false},
      0.99, small_ms);
}

}  // namespace

void measure_steps(Harness& harness, GpuTrainer& trainer) {
  Shape shape;
  shape.bytes = harness.bytes();
  Training training(trainer, shape);
  harness.add_condition(training.kind());
  const int enough = training.products_for(0.8);
  harness.compare(
      {"G5", "steps with a capture each / without", 0.98, 0.95},
      [&] { return training.steps_per_second(enough, true); },
      [&] { return training.steps_per_second(enough, false); });
  const auto seen = visible_times(training, harness.pairs());
  if (!seen.empty())
    harness.sample(
        {"G5b", "time that copies show / time that does not fit", 1.05, 1.2, Better::lower, "x"},
        0.5, seen);
}

void measure_overlap(Harness& harness, GpuTrainer& trainer) {
  if (!connections().empty()) harness.add_condition(connections());
  for (const auto& [gap, name] : gaps) {
    if (!has_gap(trainer, gap)) continue;
    Shape shape;
    shape.options.gap = gap;
    measure_shape(harness, trainer, shape, name);
    measure_small_copies(harness, trainer, gap, name);
  }
  Shape beside;
  beside.has_kernel_that_stays = true;
  measure_shape(harness, trainer, beside, "beside a kernel that stays");
  // Fewer where the state is small, as on a driver that has no rates.
  const std::size_t many = std::clamp<std::size_t>(harness.bytes() / (160 * ckpt::KiB), 60, 6000);
  for (const auto& [gather, name] :
       {std::pair{ckpt::GpuGather::on, "gather"}, std::pair{ckpt::GpuGather::off, "none"}}) {
    Shape small;
    small.tensors = many;
    small.options.gather = gather;
    measure_shape(harness, trainer, small, fmt::format("{} tensors, {}", many, name));
  }
  Shape overlapping;
  overlapping.options.prefers_overlap = true;
  measure_shape(harness, trainer, overlapping, "prefers_overlap");
}

}  // namespace bench
