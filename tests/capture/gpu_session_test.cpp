// Goal:   the engine hears that a GPU fills a Slot before the first copy is queued, since the
// copies
//         may go on when the trainer dies; of Slots that the host fills it hears nothing.
// Method: a session with a tensor on the stand-in driver, or on the host, and a FakeEngine that
// keeps
//         what it is sent.
#include <catch2/catch.hpp>
#include <vector>

#include "client/checkpoint_session.hpp"
#include "support/cuda_stand_in/stand_in.hpp"
#include "unit/client/fake_engine.hpp"

namespace ckpt::test {

namespace {

constexpr std::size_t tensor_bytes = 300'000;

Options options() {
  Options options;
  options.job = "unit";
  options.gpu_gap = GpuGap::memset;
  return options;
}

std::vector<wire::control::Arrived> said_of_a_capture(TensorRef tensor) {
  const auto node = std::make_shared<FakeNode>();
  client::CheckpointSession session(options(), link_to(node));
  tensor.shape = {static_cast<std::int64_t>(tensor_bytes)};
  tensor.guarded = true;
  REQUIRE(session.add("tensor", tensor));
  REQUIRE(session.save(Step{1}, {}, client::Due::always).value() == SaveOutcome::started);
  REQUIRE(session.guard({}));
  REQUIRE(session.close(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
  const std::lock_guard lock(node->mutex);
  REQUIRE(node->shards.size() == 1);
  return node->arrived;
}

}  // namespace

TEST_CASE("gpu session: the engine hears that a GPU fills the Slot", "[unit][capture]") {
  StandInTrainer trainer("seed=3");
  TensorRef tensor;
  tensor.data = trainer.allocate(tensor_bytes);
  tensor.location = Location::cuda;
  const auto arrived = said_of_a_capture(tensor);
  REQUIRE_FALSE(arrived.empty());
  REQUIRE(arrived.front().bytes == 0);
}

TEST_CASE("gpu session: of a Slot that the host fills the engine hears at its end",
          "[unit][capture]") {
  std::vector<std::byte> memory(tensor_bytes);
  TensorRef tensor;
  tensor.data = memory.data();
  REQUIRE(said_of_a_capture(tensor).empty());
}

}  // namespace ckpt::test
