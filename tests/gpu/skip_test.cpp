// Goal:   on a real GPU, saves of frozen and trained tensors move only what has changed, and each
//         of them comes back bit for bit.
// Method: frozen tensors of sizes and addresses of every kind, of which one changes by a byte now
//         and then, beside a trained one; so many saves, then other bytes in the tensors and a
//         restore. On whatever driver is there.
#include <array>
#include <catch2/catch.hpp>
#include <ckpt/framework.hpp>
#include <optional>

#include "base/units.hpp"
#include "gpu/gpu_here.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {

namespace {

class LoraTraining {
 public:
  LoraTraining() : trainer_(open_trainer()) {
    Options options;
    options.job = "gpu-lora";
    options.embedded = true;
    options.replicas = 1;
    options.memory_budget = 256 << 20;
    options.skip_unchanged = true;
    checkpointer_.emplace(FrameworkCheckpointer::open(options).value());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      // At every address modulo 16.
      places_.push_back(trainer_->allocate(sizes[i] + 16) + i % 16);
      bytes_.push_back(random_bytes(sizes[i], i));
      trainer_->write(places_[i], bytes_[i]);
      TensorRef tensor;
      tensor.data = places_[i];
      tensor.shape = {static_cast<std::int64_t>(sizes[i])};
      tensor.location = Location::cuda;
      tensor.guarded = i == trained;
      REQUIRE(checkpointer_->add("t" + std::to_string(i), tensor));
    }
    REQUIRE(checkpointer_->prepare());
  }

  // Returns how many bytes it did not copy.
  std::uint64_t save() {
    const std::uint64_t before = checkpointer_->stats().bytes_unchanged;
    saved_ = bytes_;
    REQUIRE(checkpointer_->save(Step{++step_}, trainer_->stream(), gpu_patience).value() ==
            SaveOutcome::started);
    // At once, as a trainer that does not know of the copies.
    REQUIRE(checkpointer_->guard(trainer_->stream()));
    change(trained, 0, sizes[trained]);
    if (step_ % 3 == 0) change(step_ % trained, sizes[step_ % trained] / 2, 1);
    REQUIRE(checkpointer_->wait(Step{step_}, Level::captured, gpu_patience));
    return checkpointer_->stats().bytes_unchanged - before;
  }
  void restore() {
    for (std::size_t i = 0; i < sizes.size(); ++i) change(i, 0, sizes[i]);
    REQUIRE(checkpointer_->wait(Step{step_}, Level::committed, gpu_patience));
    REQUIRE(checkpointer_->restore().value().step == Step{step_});
    for (std::size_t i = 0; i < sizes.size(); ++i)
      REQUIRE(trainer_->read(places_[i], sizes[i]) == saved_[i]);
    bytes_ = saved_;
  }
  std::uint64_t failed() { return checkpointer_->stats().failed; }

  static constexpr std::array<std::size_t, 12> sizes = {
      1, 7, 4096, 4097, 8, 9 * MiB + 3, 64 * KiB, 77, 5 * MiB + 1, 64 * KiB + 1, 250'000, 300'000};
  static constexpr std::size_t trained = sizes.size() - 1;

 private:
  void change(std::size_t tensor, std::size_t first, std::size_t count) {
    const auto bytes = random_bytes(count, step_ * 100 + tensor + 7777);
    for (std::size_t i = 0; i < count; ++i) bytes_[tensor][first + i] ^= bytes[i] | std::byte{1};
    trainer_->write(places_[tensor], bytes_[tensor]);
  }

  std::unique_ptr<GpuTrainer> trainer_;
  std::vector<std::byte*> places_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::vector<std::byte>> saved_;  // By the newest save.
  std::uint64_t step_ = 0;
  std::optional<FrameworkCheckpointer> checkpointer_;  // Goes before what it copies.
};

}  // namespace

TEST_CASE("gpu skip: what has not changed is not copied, and comes back", "[gpu]") {
  std::uint64_t frozen = 0;
  for (const std::size_t size : LoraTraining::sizes) frozen += size;
  frozen -= LoraTraining::sizes[LoraTraining::trained];
  for (int saves = 3; saves <= 7; ++saves) {
    LoraTraining training;
    INFO(saves << " saves");
    for (int round = 0; round < 2; ++round) {
      std::uint64_t unchanged = 0;
      for (int i = 0; i < saves; ++i) unchanged = training.save();
      // At most two parts had changed, each by a byte.
      REQUIRE(unchanged + 4 * 64 * KiB >= frozen);
      REQUIRE(unchanged <= frozen);
      training.restore();
    }
    REQUIRE(training.failed() == 0);
  }
}

}  // namespace ckpt::test
