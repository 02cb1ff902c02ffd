// How long Checkpointer::save holds a trainer whose GPU is busy, and a training run with it.
//
// The engine runs in this process, with a budget that is set: what a machine has free at its start
// says little about what it has later.
#include <algorithm>
#include <ckpt/framework.hpp>

#include "bench/gpu_gemm.hpp"
#include "bench/gpu_parts.hpp"

namespace bench {

using ckpt::KiB;
using ckpt::MiB;
using ckpt::test::GpuTrainer;
using std::chrono::steady_clock;

namespace {

constexpr std::uint32_t slots = 3;
constexpr std::chrono::seconds patience{30};

// Saver: a trainer's tensors, and its Checkpointer.
class Saver {
 public:
  Saver(GpuTrainer& trainer, const std::vector<std::size_t>& sizes) : trainer_(trainer) {
    std::uint64_t bytes = 0;
    for (const std::size_t size : sizes) bytes += size;
    ckpt::Options options;
    options.job = "gpu-bench";
    options.embedded = true;
    options.own_slots = slots;
    options.replicas = 1;
    // A header has 100 bytes for each tensor, or a little more.
    options.memory_budget = slots * (bytes + sizes.size() * 256 + 16 * MiB);
    checkpointer_ = std::make_unique<ckpt::FrameworkCheckpointer>(
        must(ckpt::FrameworkCheckpointer::open(options)));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      places_.push_back(trainer.allocate(sizes[i]));
      ckpt::TensorRef tensor;
      tensor.data = places_.back();
      tensor.shape = {static_cast<std::int64_t>(sizes[i])};
      tensor.location = ckpt::Location::cuda;
      tensor.guarded = true;
      must(checkpointer_->add("tensor." + std::to_string(i), tensor));
    }
    must(checkpointer_->prepare());
    // The first save waits for its Slots, and the next ones find them registered.
    for (int i = 0; i < 3; ++i) {
      (void)save();
      finish();
    }
  }
  ~Saver() {
    checkpointer_.reset();
    for (std::byte* place : places_) trainer_.free(place);
  }
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  double save() {  // Milliseconds.
    const auto began_at = steady_clock::now();
    outcome_ = must(checkpointer_->save(ckpt::Step{++step_}, trainer_.stream()));
    return milliseconds_since(began_at);
  }
  bool has_started() const { return outcome_ == ckpt::SaveOutcome::started; }
  void update() {
    must(checkpointer_->guard(trainer_.stream()));
    trainer_.fill(places_.front(), 7, 1);
  }
  // Until the step that was started is captured, so that the next save finds a Slot.
  void finish() {
    update();
    trainer_.spin();
    if (has_started())
      must(checkpointer_->wait(ckpt::Step{step_}, ckpt::Level::captured, patience));
  }

 private:
  GpuTrainer& trainer_;
  std::unique_ptr<ckpt::FrameworkCheckpointer> checkpointer_;
  std::vector<std::byte*> places_;
  std::uint64_t step_ = 0;
  ckpt::SaveOutcome outcome_ = ckpt::SaveOutcome::not_due;
};

struct Saves {
  const char* id;
  const char* what;
  double queued_ms;         // Work that is queued before each save.
  bool runs_ahead = false;  // The host waits for nothing: most saves meet the one before.
};

void measure_case(Harness& harness, GpuTrainer& trainer, const std::vector<std::size_t>& sizes,
                  const Saves& which) {
  constexpr int saves = 12;
  GpuGemm gemm(trainer);
  const double product_ms = gemm.milliseconds();
  Saver saver(trainer, sizes);
  std::vector<double> held_ms;
  int started = 0;
  for (int i = 0; i < saves; ++i) {
    if (which.queued_ms > 0) gemm.compute(static_cast<int>(which.queued_ms / product_ms) + 1);
    held_ms.push_back(saver.save());
    started += saver.has_started() ? 1 : 0;
    if (which.runs_ahead) {
      saver.update();
    } else {
      saver.finish();
    }
  }
  saver.finish();
  const std::string what =
      fmt::format("Checkpointer::save, {}, median ({} of {} captured)", which.what, started, saves);
  harness.sample({which.id, what, 2, 10, Better::lower, "ms"}, 0.5, held_ms);
  harness.sample(
      {std::string(which.id) + " max", "the longest of them", 5, 10, Better::lower, "ms", false}, 1,
      held_ms);
}

}  // namespace

void measure_saves(Harness& harness, GpuTrainer& trainer) {
  const auto model = sizes_like_a_model(harness.bytes());
  measure_case(harness, trainer, model, {"G4 s", "a model", 0});
  measure_case(harness, trainer, model, {"G4 busy", "500 ms of work queued", 500});
  measure_case(harness, trainer, model, {"G4 ahead", "each step, the host ahead", 50, true});
  const std::vector<std::size_t> small(20'000, 4 * KiB);
  measure_case(harness, trainer, small, {"G4 20k", "20,000 tensors of 4 KiB, busy", 50});
  const std::vector<std::size_t> scalars(3'000, 4);
  measure_case(harness, trainer, scalars, {"G4 4B", "3,000 tensors of 4 bytes, busy", 50});
}

void measure_training(Harness& harness, GpuTrainer& trainer) {
  constexpr double step_ms = 100;
  constexpr int steps = 40;
  GpuGemm gemm(trainer);
  const int products = static_cast<int>(step_ms / gemm.milliseconds()) + 1;
  Saver saver(trainer, sizes_like_a_model(harness.bytes()));
  int started = 0;
  const auto train = [&](bool with_saves) {
    return rate(steps, [&] {
      for (int i = 0; i < steps; ++i) {
        gemm.compute(products);
        saver.update();
        trainer.spin();  // Its loss.
        if (!with_saves) continue;
        (void)saver.save();
        started += saver.has_started() ? 1 : 0;
      }
      saver.update();
      trainer.spin();
    });
  };
  std::vector<double> ratios;
  for (int pair = 0; pair < 3; ++pair) ratios.push_back(train(true) / train(false));
  harness.sample(
      {"G12",
       fmt::format("a run that saves each step / none ({} of {} captured)", started, 3 * steps),
       0.98, 0.95, Better::higher, "", false},
      0.5, ratios);
}

}  // namespace bench
