// Goal:   an owner that stops learns when its work has left, or that it did not in time.
// Method: hold and drop passes on a fake clock.
#include "base/stop_gate.hpp"
#include "base/spawn.hpp"

#include <catch2/catch.hpp>
#include <memory>
#include <optional>

#include "support/fake_clock.hpp"

namespace ckpt::test {
namespace {

using std::chrono::milliseconds;

DetachedTask drain(StopGate& gate, Clock& clock, Time deadline, std::optional<Status>& ended) {
  auto status = co_await gate.drained(clock, deadline);
  ended.emplace(std::move(status));
}

TEST_CASE("stop gate: draining waits until the last pass has gone", "[unit][base]") {
  asio::io_context context;
  FakeClock clock(context);
  StopGate gate;
  // Not optional: g++ 12 takes its unused half for an uninitialised read.
  auto first = std::make_unique<StopGate::Pass>(gate.enter());
  auto moved = std::make_unique<StopGate::Pass>(std::move(*first));
  CHECK(gate.in_flight() == 1);
  first.reset();
  CHECK(gate.in_flight() == 1);
  gate.stop();
  CHECK(gate.is_stopping());
  std::optional<Status> ended;
  run_detached(context.get_executor(), drain(gate, clock, clock.after(milliseconds(100)), ended));
  clock.advance(milliseconds(50));
  CHECK(!ended);
  moved.reset();
  clock.advance(milliseconds(1));
  REQUIRE(ended);
  CHECK(*ended);
}

TEST_CASE("stop gate: a pass that stays makes draining fail at its deadline", "[unit][base]") {
  asio::io_context context;
  FakeClock clock(context);
  StopGate gate;
  const auto pass = gate.enter();
  std::optional<Status> ended;
  run_detached(context.get_executor(), drain(gate, clock, clock.after(milliseconds(10)), ended));
  clock.advance(milliseconds(9));
  CHECK(!ended);
  clock.advance(milliseconds(2));
  REQUIRE(ended);
  REQUIRE(!*ended);
  CHECK(ended->error().code() == Errc::unavailable);
}

TEST_CASE("stop gate: a pass may outlive its gate", "[unit][base]") {
  auto gate = std::make_unique<StopGate>();
  const auto pass = std::make_unique<StopGate::Pass>(gate->enter());
  CHECK(gate->in_flight() == 1);
  gate.reset();
}

}  // namespace
}  // namespace ckpt::test
