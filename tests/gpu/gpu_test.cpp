// Goal:   on a real GPU a capture holds what the tensors held at the save, though they are updated
//         right after it; a restore puts it back; and the seam's contract holds there as elsewhere.
// Method: whatever driver is there: nothing of the stand-in is asked for. Where no GPU is, this is
//         not run (tests/run.sh gpu says so); on the stand-in it shows that the suite itself is
//         sound.
#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <ckpt/checkpointer.hpp>
#include <cstring>
#include <optional>

#include "contract/device_contract.hpp"
#include "device/gpus.hpp"
#include "gpu/gpu_here.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::test {

namespace {

class RealGpu final : public DeviceUnderTest {
 public:
  explicit RealGpu(bool is_pinned)
      : is_pinned_(is_pinned),
        trainer_(open_trainer()),
        pins_(std::make_shared<device::MemoryPins>()),
        gpus_(device::Gpus::open({0, 256 * KiB, 16}, pins_).value()),
        device_(gpus_->device_of(trainer_->allocate(1), 0).value()) {}
  ~RealGpu() override { pins_->stop(); }

  device::Device& device() override { return *device_; }
  Stream stream() override { return trainer_->stream(); }
  std::size_t large_mib() const override { return 8; }
  std::shared_ptr<const void> pin(const std::shared_ptr<std::vector<std::byte>>& slot) override {
    if (!is_pinned_) return nullptr;
    auto held = pins_->hold(*slot, slot);
    REQUIRE(pins_->wait_settled(std::chrono::steady_clock::now() + gpu_patience));
    return held;
  }
  std::byte* allocate(std::size_t bytes) override { return trainer_->allocate(bytes); }
  void write(std::byte* target, std::span<const std::byte> source) override {
    trainer_->write(target, {source.begin(), source.end()});
  }
  std::vector<std::byte> read(const std::byte* source, std::size_t bytes) override {
    return trainer_->read(source, bytes);
  }

 private:
  bool is_pinned_;
  std::unique_ptr<GpuTrainer> trainer_;
  std::shared_ptr<device::MemoryPins> pins_;
  std::unique_ptr<device::Gpus> gpus_;
  device::Device* device_;
};

// Words of one tensor, by step: what set_words writes.
std::uint32_t word_of(std::uint64_t step, std::size_t tensor) {
  return static_cast<std::uint32_t>(step * 0x9e3779b9u + tensor * 0x85ebca6bu + 1);
}

// Training: each tensor holds one word all over, another one after each step.
class Training {
 public:
  explicit Training(const std::string& dir) : trainer_(open_trainer()) {
    Options options;
    options.job = "gpu-suite";
    options.dir = dir;
    options.embedded = true;
    options.save_storage_interval = {10, {}};
    options.memory_budget = 512 << 20;
    checkpointer_.emplace(Checkpointer::open(options).value());
    for (std::size_t i = 0; i < words.size(); ++i) {
      places_.push_back(trainer_->allocate(words[i] * sizeof(std::uint32_t)));
      TensorRef tensor;
      tensor.data = places_.back();
      tensor.dtype = DType::u32;
      tensor.shape = {static_cast<std::int64_t>(words[i])};
      tensor.location = Location::cuda;
      tensor.guarded = i % 3 != 0;
      REQUIRE(checkpointer_->add(fmt::format("t{}", i), tensor));
    }
    update(0);
  }

  Checkpointer& checkpointer() { return *checkpointer_; }
  SaveOutcome step(std::uint64_t step) {
    REQUIRE(checkpointer_->guard(trainer_->stream()));
    update(step);
    return checkpointer_->save(Step{step}, trainer_->stream()).value();
  }
  // Which tensor is not as it was at `step`; none: nullopt.
  std::optional<std::size_t> difference(std::uint64_t step) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::uint32_t word = word_of(step, i);
      const auto bytes = trainer_->read(places_[i], words[i] * sizeof(word));
      for (std::size_t at = 0; at < bytes.size(); at += sizeof(word))
        if (std::memcmp(bytes.data() + at, &word, sizeof(word)) != 0) return i;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::array<std::size_t, 12> words = {
      1, 3, 1024, 1025, 8, 1 << 20, 4 << 20, 77, (2 << 20) + 1, 16, 250'000, 2};

  void update(std::uint64_t step) {
    for (std::size_t i = 0; i < words.size(); ++i)
      trainer_->fill(places_[i], word_of(step, i), words[i]);
  }

  std::unique_ptr<GpuTrainer> trainer_;
  std::vector<std::byte*> places_;
  std::optional<Checkpointer> checkpointer_;  // Goes before what it copies.
};

}  // namespace

TEST_CASE("gpu: the contract of devices", "[gpu]") {
  RealGpu subject(GENERATE(true, false));
  check_a_run_copies_every_piece(subject);
  check_a_run_copies_what_the_sources_hold_at_its_start(subject);
  check_a_fence_frees_the_sources(subject);
  check_a_fence_of_an_idle_run_is_nothing(subject);
  check_an_empty_run_ends(subject);
  check_several_runs_go_on_at_once(subject);
  check_a_run_may_be_destroyed_while_it_copies(subject);
  check_copies_in_are_there_when_settled(subject);
}

TEST_CASE("gpu: each life of a trainer goes on where the last one ended, bit for bit", "[gpu]") {
  const TemporaryDirectory directory;
  constexpr std::uint64_t steps = 20;
  std::uint64_t step = 0;
  std::uint64_t newest = 0;  // That was captured.
  for (int life = 1; life <= 3; ++life) {
    Training training(directory.path());
    INFO("life " << life);
    const auto restored = training.checkpointer().restore();
    REQUIRE(restored.has_value() == (life > 1));
    if (restored) {
      REQUIRE(number(restored->step) == newest);
      REQUIRE_FALSE(training.difference(newest));
      step = newest;
    }
    for (std::uint64_t i = 0; i < steps; ++i) {
      // One that finds no free Slot is skipped; training goes on.
      if (training.step(++step) == SaveOutcome::started) newest = step;
    }
    REQUIRE(newest > 0);
    REQUIRE(training.checkpointer().wait(Step{newest}, Level::committed, gpu_patience));
    REQUIRE(training.checkpointer().stats().failed == 0);
    REQUIRE(training.checkpointer().close(gpu_patience));
  }
}

TEST_CASE("gpu: memory that does not lie on it is refused", "[gpu]") {
  const auto trainer = open_trainer();
  Options options;
  options.job = "gpu-suite";
  options.embedded = true;
  auto checkpointer = Checkpointer::open(options).value();
  std::vector<std::byte> host(16);
  TensorRef tensor;
  tensor.data = host.data();
  tensor.shape = {16};
  tensor.location = Location::cuda;
  const Status added = checkpointer.add("host", tensor);
  REQUIRE_FALSE(added);
  REQUIRE(added.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(added.error().message(), Catch::Contains("is no memory of GPU 0"));
}

}  // namespace ckpt::test
