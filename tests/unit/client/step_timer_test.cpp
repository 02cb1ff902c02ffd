// Goal:   the times that are sent are those of training alone, of enough steps to mean something.
// Method: saves at times that the test chooses.
#include "client/step_timer.hpp"

#include <catch2/catch.hpp>

namespace ckpt::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class TimerScene {
 public:
  // A step of so long ends, and a save for it begins, which takes `held`.
  std::optional<wire::control::StepTime> step(milliseconds duration, milliseconds held = {},
                                              std::uint64_t steps = 1) {
    now_ += duration;
    number_ += steps;
    const auto measured = timer.step_ended(Step{number_}, now_, is_capturing);
    now_ += held;
    timer.paused(held);
    return measured;
  }
  void warm_up() {
    (void)step(milliseconds(0));  // The first save.
    for (int n = 0; n < StepTimer::first_not_counted; ++n) REQUIRE_FALSE(step(milliseconds(5'000)));
  }

  StepTimer timer;
  bool is_capturing = false;

 private:
  StepTimer::TimePoint now_{};
  std::uint64_t number_ = 0;
};

}  // namespace

TEST_CASE_METHOD(TimerScene, "step timer: a long step is sent at once", "[unit][client]") {
  warm_up();
  const auto measured = step(milliseconds(700));
  REQUIRE(measured);
  REQUIRE(measured->steps == 1);
  REQUIRE(measured->time == milliseconds(700));
  REQUIRE_FALSE(measured->during_capture);
}

TEST_CASE_METHOD(TimerScene, "step timer: short steps are sent together", "[unit][client]") {
  warm_up();
  for (int n = 0; n < 4; ++n) REQUIRE_FALSE(step(milliseconds(11)));
  const auto measured = step(milliseconds(11));
  REQUIRE(measured);
  REQUIRE(measured->steps == 5);
  REQUIRE(measured->time == milliseconds(55));
}

TEST_CASE_METHOD(TimerScene, "step timer: the time in our calls is left out", "[unit][client]") {
  warm_up();
  REQUIRE_FALSE(step(milliseconds(30), seconds(3)));
  const auto measured = step(milliseconds(30), seconds(4));
  REQUIRE(measured);
  REQUIRE(measured->time == milliseconds(60));
  REQUIRE(step(milliseconds(60))->time == milliseconds(60));
}

TEST_CASE_METHOD(TimerScene, "step timer: seldom saves send all steps between", "[unit][client]") {
  warm_up();
  const auto measured = step(milliseconds(1'000), {}, 100);
  REQUIRE(measured->steps == 100);
  REQUIRE(measured->time == milliseconds(1'000));
}

TEST_CASE_METHOD(TimerScene, "step timer: it says when a capture ran beside the steps",
                 "[unit][client]") {
  warm_up();
  timer.capture_began();
  REQUIRE(step(milliseconds(100))->during_capture);
  REQUIRE_FALSE(step(milliseconds(100))->during_capture);
  is_capturing = true;
  REQUIRE_FALSE(step(milliseconds(100))->during_capture);
  REQUIRE(step(milliseconds(100))->during_capture);
}

TEST_CASE_METHOD(TimerScene, "step timer: after a restore the first steps are not counted",
                 "[unit][client]") {
  warm_up();
  REQUIRE(step(milliseconds(100)));
  timer.restart();
  warm_up();
  REQUIRE(step(milliseconds(100)));
}

TEST_CASE("step timer: a step that is saved again, or an older one, is no time", "[unit][client]") {
  StepTimer timer;
  const StepTimer::TimePoint start{};
  for (int n = 0; n <= StepTimer::first_not_counted; ++n)
    (void)timer.step_ended(Step{10u + static_cast<unsigned>(n)}, start + n * seconds(1), false);
  REQUIRE_FALSE(timer.step_ended(Step{12}, start + seconds(9), false));
  REQUIRE_FALSE(timer.step_ended(Step{3}, start + seconds(10), false));
  const auto measured = timer.step_ended(Step{4}, start + seconds(11), false);
  REQUIRE(measured);
  REQUIRE(measured->time == seconds(1));
}

}  // namespace ckpt::client
