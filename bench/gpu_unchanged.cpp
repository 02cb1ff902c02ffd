// How long a save stops a trainer whose weights are frozen, but for one in a hundred, with and
// without skip_unchanged; and how many bytes it moves.
//
// The next work on the trainer's stream waits until unguarded tensors are copied. So the stop is
// the time from the save to the end of a kernel that is queued right behind it.
#include <algorithm>
#include <ckpt/framework.hpp>

#include "bench/gpu_parts.hpp"

namespace bench {

using ckpt::MiB;
using ckpt::test::GpuTrainer;
using std::chrono::steady_clock;

namespace {

constexpr std::uint32_t slots = 3;  // So that a save finds one free.
constexpr std::chrono::seconds patience{60};
constexpr int saves = 9;

// LoraSaver: frozen tensors, trained ones that the optimizer owns, and their Checkpointer.
class LoraSaver {
 public:
  LoraSaver(GpuTrainer& trainer, std::size_t frozen_bytes, bool skips) : trainer_(trainer) {
    const std::size_t trained_bytes = frozen_bytes / 100;
    ckpt::Options options;
    options.job = "gpu-bench-lora";
    options.embedded = true;
    options.own_slots = slots;
    options.replicas = 1;
    // The last of the sizes may be more than what was left.
    options.memory_budget = slots * (frozen_bytes + frozen_bytes / 16 + trained_bytes + 16 * MiB);
    options.skip_unchanged = skips;
    checkpointer_ = std::make_unique<ckpt::FrameworkCheckpointer>(
        must(ckpt::FrameworkCheckpointer::open(options)));
    for (const std::size_t bytes : sizes_like_a_model(frozen_bytes)) add(bytes, false);
    add(trained_bytes, true);
    must(checkpointer_->prepare());
    // Until all Slots are pinned, and it is known what they hold.
    for (std::uint32_t i = 0; i < 2 * slots; ++i) (void)stop_ms();
    before_ = checkpointer_->stats();
  }
  ~LoraSaver() {
    checkpointer_.reset();
    for (std::byte* place : places_) trainer_.free(place);
  }
  LoraSaver(const LoraSaver&) = delete;
  LoraSaver& operator=(const LoraSaver&) = delete;

  double stop_ms() {
    trainer_.spin();
    const auto began_at = steady_clock::now();
    const auto outcome =
        must(checkpointer_->save(ckpt::Step{++step_}, trainer_.stream(), patience));
    if (outcome != ckpt::SaveOutcome::started) give_up("a save found no Slot");
    trainer_.fill(word(), 7, 1);
    trainer_.spin();
    const double stopped_ms = milliseconds_since(began_at);
    must(checkpointer_->guard(trainer_.stream()));
    trainer_.fill(places_.back(), static_cast<std::uint32_t>(step_), 1024);  // An update.
    must(checkpointer_->wait(ckpt::Step{step_}, ckpt::Level::captured, patience));
    captured_ms_ = milliseconds_since(began_at);
    must(checkpointer_->wait(ckpt::Step{step_}, ckpt::Level::committed, patience));
    return stopped_ms;
  }
  double captured_ms() const { return captured_ms_; }  // From the newest save to its checksums.
  double moved() const {
    const ckpt::Stats now = checkpointer_->stats();
    const auto captured = static_cast<double>(now.bytes_captured - before_.bytes_captured);
    const auto unchanged = static_cast<double>(now.bytes_unchanged - before_.bytes_unchanged);
    return (captured - unchanged) / captured;
  }

 private:
  void add(std::size_t bytes, bool guarded) {
    places_.push_back(trainer_.allocate(bytes));
    trainer_.fill(places_.back(), 0x3c3c3c3c, bytes / sizeof(std::uint32_t));
    ckpt::TensorRef tensor;
    tensor.data = places_.back();
    tensor.shape = {static_cast<std::int64_t>(bytes)};
    tensor.location = ckpt::Location::cuda;
    tensor.guarded = guarded;
    must(checkpointer_->add("tensor." + std::to_string(places_.size()), tensor));
  }
  std::byte* word() {
    if (word_ == nullptr) places_.insert(places_.begin(), word_ = trainer_.allocate(4));
    return word_;
  }

  GpuTrainer& trainer_;
  std::unique_ptr<ckpt::FrameworkCheckpointer> checkpointer_;
  std::vector<std::byte*> places_;  // The trained one is the last.
  std::byte* word_ = nullptr;       // The trainer's own, not saved.
  ckpt::Stats before_;
  std::uint64_t step_ = 0;
  double captured_ms_ = 0;
};

}  // namespace

void measure_unchanged(Harness& harness, GpuTrainer& trainer) {
  const std::size_t bytes = 4 * harness.bytes();
  const std::string state = fmt::format("{} MiB frozen, 1 % trained", bytes / MiB);
  for (const bool skips : {false, true}) {
    LoraSaver saver(trainer, bytes, skips);
    std::vector<double> stop_ms;
    std::vector<double> captured_ms;
    for (int i = 0; i < saves; ++i) {
      stop_ms.push_back(saver.stop_ms());
      captured_ms.push_back(saver.captured_ms());
    }
    const std::string id = skips ? "B33g" : "B33g off";
    const std::string how = skips ? "skip_unchanged" : "all copied";
    harness.sample({id + " stop", fmt::format("a save stops the GPU, {}, {}", state, how), 10, 40,
                    Better::lower, "ms", skips},
                   0.5, stop_ms);
    harness.sample({id + " captured", fmt::format("until it is captured, {}", how), 500, 2000,
                    Better::lower, "ms", false},
                   0.5, captured_ms);
    harness.sample({id, fmt::format("bytes that cross the link / all, {}", how), 0.03, 0.06,
                    Better::lower, "", skips},
                   0.5, {saver.moved()});
  }
}

}  // namespace bench
