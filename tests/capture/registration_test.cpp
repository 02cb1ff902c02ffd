// Goal:   the registration of memory, which blocks every other call of the driver, costs the
//         training nothing: it comes before the first capture, in pieces, and on a thread of ours.
// Method: a stand-in whose registrations take long; a job that is prepared, and one that is not; a
//         Pinner that returns when the test says so.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <ckpt/framework.hpp>
#include <memory>
#include <mutex>
#include <semaphore>

#include "base/units.hpp"
#include "device/gpus.hpp"
#include "support/cuda_stand_in/stand_in.hpp"
#include "support/patience.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::test {

namespace {

constexpr std::size_t weight_bytes = 300'000;

// A trainer with one tensor, which is one byte all over.
class Weight {
 public:
  Weight(const std::string& dir, const std::string& words) : trainer_(words) {
    Options options;
    options.job = "registration";
    options.dir = dir;
    options.embedded = true;
    options.memory_budget = 64 << 20;
    options.gpu_gap = GpuGap::memset;
    checkpointer_ =
        std::make_unique<FrameworkCheckpointer>(FrameworkCheckpointer::open(options).value());
    place_ = trainer_.allocate(weight_bytes);
    TensorRef tensor;
    tensor.data = place_;
    tensor.shape = {weight_bytes};
    tensor.location = Location::cuda;
    tensor.guarded = true;
    REQUIRE(checkpointer_->add("weight", tensor));
  }

  FrameworkCheckpointer& checkpointer() { return *checkpointer_; }
  // As a training does it: the guard, the update, the save.
  SaveOutcome step(std::uint64_t step) {
    REQUIRE(checkpointer_->guard(trainer_.stream()));
    trainer_.write(place_, std::vector<std::byte>(weight_bytes, static_cast<std::byte>(step)));
    return checkpointer_->save(Step{step}, trainer_.stream()).value();
  }
  bool is_of(std::uint64_t step) {
    const auto bytes = trainer_.read(place_, weight_bytes);
    return bytes == std::vector<std::byte>(weight_bytes, static_cast<std::byte>(step));
  }

 private:
  StandInTrainer trainer_;
  std::byte* place_ = nullptr;
  std::unique_ptr<FrameworkCheckpointer> checkpointer_;  // Goes before what it copies.
};

}  // namespace

TEST_CASE("registration: a training that was prepared meets none", "[unit][capture]") {
  const TemporaryDirectory directory;
  Weight weight(directory.path(), "seed=1 pin_ms=30");
  REQUIRE(weight.checkpointer().prepare());
  const StandInCounts before = stand_in().counts();
  REQUIRE(before.pinned_ranges > 0);
  std::size_t started = 0;
  for (std::uint64_t step = 1; step <= 20; ++step)
    started += weight.step(step) == SaveOutcome::started ? 1 : 0;
  REQUIRE(started > 0);
  const StandInCounts after = stand_in().counts();
  REQUIRE(after.calls_behind_pins == before.calls_behind_pins);
  // No ring of pinned memory was made: the copies went straight into the Slots.
  REQUIRE(after.pinned_ranges == before.pinned_ranges);
  REQUIRE(after.pageable_copies == 0);
  REQUIRE(weight.checkpointer().close());
  REQUIRE(stand_in().counts().pins_by_trainer == 0);
  REQUIRE(stand_in().violations() == std::string());
}

TEST_CASE("registration: a training that was not prepared saves meanwhile", "[unit][capture]") {
  const TemporaryDirectory directory;
  std::uint64_t newest = 0;
  {
    Weight weight(directory.path(), "seed=2 pin_ms=30");
    for (std::uint64_t step = 1; newest == 0 || step <= 20; ++step)
      if (weight.step(step) == SaveOutcome::started) newest = step;
    REQUIRE(weight.checkpointer().wait(Step{newest}, Level::durable, patience));
    REQUIRE(weight.checkpointer().close());
    REQUIRE(stand_in().counts().pins_by_trainer == 0);
    REQUIRE(stand_in().violations() == std::string());
  }
  Weight weight(directory.path(), "seed=3 pin_ms=30");
  REQUIRE(number(weight.checkpointer().restore().value().step) == newest);
  REQUIRE(weight.is_of(newest));
}

TEST_CASE("registration: a call of the trainer's waits for one piece of a Slot",
          "[unit][capture]") {
  constexpr std::uint64_t piece = 64 * KiB;
  constexpr int pieces = 12;
  device::GpuOptions options;
  options.pin_piece_bytes = piece;
  // Some call has to come while memory is registered: else the bound would prove nothing.
  constexpr int rounds_max = 500;
  std::uint64_t behind = 0;
  for (int round = 0; behind == 0 && round < rounds_max; ++round) {
    const StandInTrainer trainer("pin_ms=3");
    const auto pins = std::make_shared<device::MemoryPins>();
    const auto gpus = device::Gpus::open(options, pins).value();
    REQUIRE(gpus->device_of(nullptr, 0));
    const auto memory = std::make_shared<std::vector<std::byte>>(pieces * piece + 2 * page_bytes);
    const auto first = page_bytes - reinterpret_cast<std::uintptr_t>(memory->data()) % page_bytes;
    const std::span<std::byte> slot = std::span(*memory).subspan(first, pieces * piece);
    const auto held = pins->hold(slot, memory);
    const auto stream = static_cast<CUstream>(trainer.stream().handle);
    while (!pins->is_pinned(slot)) (void)trainer.driver().query_stream(stream);
    const StandInCounts counts = stand_in().counts();
    REQUIRE(counts.pinned_ranges == pieces);
    REQUIRE(counts.bytes_waited_max <= piece);
    behind = counts.calls_behind_pins;
    pins->stop();
  }
  REQUIRE(behind > 0);
}

namespace {

// It pins when it is let.
struct SlowPinner final : device::Pinner {
  Status pin(std::span<std::byte>) override {
    has_begun.release();
    may_end.acquire();
    return {};
  }
  bool unpin(std::span<std::byte>) override { return true; }

  std::binary_semaphore has_begun{0};
  std::binary_semaphore may_end{0};
};

}  // namespace

TEST_CASE("registration: to ask, to hold and to let go wait for none", "[unit][device]") {
  SlowPinner pinner;
  const auto pins = std::make_shared<device::MemoryPins>();
  const auto memory = std::make_shared<std::vector<std::byte>>(2 * page_bytes);
  const std::span<std::byte> whole = *memory;
  auto first = pins->hold(whole.first(page_bytes), memory);
  pins->start(pinner);
  pinner.has_begun.acquire();
  REQUIRE_FALSE(pins->is_pinned(whole.first(page_bytes)));
  auto second = pins->hold(whole.subspan(page_bytes), memory);
  first.reset();  // It is unpinned behind its registration.
  second.reset();
  const Status settled = pins->wait_settled(std::chrono::steady_clock::now());
  REQUIRE_FALSE(settled);
  REQUIRE(settled.error().code() == Errc::unavailable);
  pinner.may_end.release();
  REQUIRE(pins->wait_settled(soon()));
  pins->stop();
  REQUIRE(memory.use_count() == 1);
}

}  // namespace ckpt::test
