// Goal:   a trainer with frozen and trained tensors on a GPU counts what its saves did not copy,
//         and each of its steps comes back bit for bit, also behind a restore or a new layout.
// Method: the engine in this process, the stand-in driver, and adapters that change at each step
//         beside weights that never do.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <ckpt/framework.hpp>
#include <optional>

#include "base/units.hpp"
#include "support/cuda_stand_in/stand_in.hpp"
#include "support/patience.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {

namespace {

constexpr std::size_t frozen_bytes = 3 * MiB + 1234;
constexpr std::size_t trained_bytes = 40'000;

// LoraJob: one frozen tensor, and one that the optimizer owns.
class LoraJob {
 public:
  explicit LoraJob(bool skips = true) : trainer_("seed=3") {
    Options options;
    options.job = "lora";
    options.embedded = true;
    options.replicas = 1;
    options.memory_budget = 64 << 20;
    options.skip_unchanged = skips;
    options.gpu_gap = GpuGap::memset;  // There is nothing to measure here.
    checkpointer_.emplace(FrameworkCheckpointer::open(options).value());
    frozen_ = add("frozen", frozen_bytes, false);
    trained_ = add("trained", trained_bytes, true);
    trainer_.write(frozen_, random_bytes(frozen_bytes, 1));
    train(0);
  }

  FrameworkCheckpointer& checkpointer() { return *checkpointer_; }
  std::byte* add(const std::string& name, std::size_t bytes, bool guarded) {
    TensorRef tensor;
    std::byte* const data = trainer_.allocate(bytes);
    tensor.data = data;
    tensor.shape = {static_cast<std::int64_t>(bytes)};
    tensor.location = Location::cuda;
    tensor.guarded = guarded;
    REQUIRE(checkpointer_->add(name, tensor));
    return data;
  }
  void train(std::uint64_t step) {
    REQUIRE(checkpointer_->guard(trainer_.stream()));
    trainer_.write(trained_, random_bytes(trained_bytes, 100 + step));
  }
  // Saves the step and returns how many of its bytes were not copied.
  std::uint64_t save(std::uint64_t step) {
    const std::uint64_t before = checkpointer_->stats().bytes_unchanged;
    REQUIRE(checkpointer_->save(Step{step}, trainer_.stream(), patience).value() ==
            SaveOutcome::started);
    REQUIRE(checkpointer_->guard(trainer_.stream()));
    REQUIRE(checkpointer_->wait(Step{step}, Level::committed, patience));
    return checkpointer_->stats().bytes_unchanged - before;
  }
  bool is_of(std::uint64_t step) {
    return trainer_.read(frozen_, frozen_bytes) == random_bytes(frozen_bytes, 1) &&
           trainer_.read(trained_, trained_bytes) == random_bytes(trained_bytes, 100 + step);
  }
  void damage() {
    trainer_.write(frozen_, random_bytes(frozen_bytes, 7));
    trainer_.write(trained_, random_bytes(trained_bytes, 8));
  }

 private:
  StandInTrainer trainer_;
  std::byte* frozen_ = nullptr;
  std::byte* trained_ = nullptr;
  std::optional<FrameworkCheckpointer> checkpointer_;  // Goes before what it copies.
};

// Captures into each of its two Slots, until both are known.
std::uint64_t fill_slots(LoraJob& job, std::uint64_t step) {
  while (job.save(++step) == 0) {
    REQUIRE(step < 20);
    job.train(step);
  }
  return step;
}

}  // namespace

TEST_CASE("skip: a session counts what it did not copy, and its steps are whole",
          "[unit][capture]") {
  LoraJob job;
  std::uint64_t step = fill_slots(job, 0);
  REQUIRE(step >= 3);
  for (int i = 0; i < 4; ++i) {
    job.train(step);
    REQUIRE(job.save(++step) == frozen_bytes);
  }
  const Stats stats = job.checkpointer().stats();
  REQUIRE(stats.failed == 0);
  REQUIRE(stats.bytes_captured > step * frozen_bytes);
  REQUIRE(stats.bytes_unchanged == 5 * frozen_bytes);
  job.damage();
  REQUIRE(number(job.checkpointer().restore().value().step) == step);
  REQUIRE(job.is_of(step - 1));
  REQUIRE(job.checkpointer().close());
  REQUIRE(std::string(stand_in().violations()) == "");
}

TEST_CASE("skip: behind a restore and a new layout, each Slot is filled anew", "[unit][capture]") {
  const bool is_restore = GENERATE(true, false);
  LoraJob job;
  std::uint64_t step = fill_slots(job, 0);
  if (is_restore) {
    REQUIRE(number(job.checkpointer().restore().value().step) == step);
  } else {
    (void)job.add("another", 5000, false);
    REQUIRE(job.checkpointer().prepare());
  }
  REQUIRE(job.save(++step) == 0);
  step = fill_slots(job, step);
  REQUIRE(job.save(++step) >= frozen_bytes);
  REQUIRE(job.checkpointer().stats().failed == 0);
  REQUIRE(job.checkpointer().close());
}

TEST_CASE("skip: without the option, each save copies all", "[unit][capture]") {
  LoraJob job(false);
  for (std::uint64_t step = 1; step <= 5; ++step) REQUIRE(job.save(step) == 0);
  REQUIRE(job.checkpointer().close());
}

}  // namespace ckpt::test
