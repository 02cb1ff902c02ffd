// Goal:   steps count as slowed by the work beside them when they are, and never for a reason of
//         their own.
// Method: steps drawn from a seed: steady ones and ones that vary, with outliers as trainers have.
#include "node/step_pace.hpp"

#include <catch2/catch.hpp>

#include "base/random.hpp"

namespace ckpt::node {
namespace {

using Effect = StepPace::Effect;
using std::chrono::milliseconds;
using std::chrono::minutes;

class PaceScene {
 public:
  explicit PaceScene(double variation = 0.01, std::uint64_t seed = 1)
      : variation_(variation), random_(seed) {}

  MeasuredStep step(double seconds, bool during_capture = false) {
    now_ += milliseconds(50);
    const double share = static_cast<double>(random_.below(2'001)) / 1'000 - 1;  // -1 to 1.
    return {now_, seconds * (1 + variation_ * share), during_capture};
  }
  void alone(int count, double seconds, bool during_capture = false) {
    for (int n = 0; n < count; ++n) pace.measured_alone(step(seconds, during_capture));
  }
  // The first that is beside the work is not counted.
  void beside(int count, double seconds, bool during_capture = false) {
    if (pace.is_empty()) ++count;
    for (int n = 0; n < count; ++n) pace.measured_beside(step(seconds, during_capture), 1'000);
  }
  void pass(Duration duration) { now_ += duration; }

  StepPace pace;

 private:
  double variation_;
  Random random_;
  Time now_ = Time(std::chrono::hours(1));
};

}  // namespace

TEST_CASE("step pace: without steps alone nothing is known", "[unit][node]") {
  PaceScene scene;
  scene.alone(StepPace::alone_min - 1, 1.0);
  scene.beside(100, 2.0);
  REQUIRE(scene.pace.effect() == Effect::unknown);
  REQUIRE(scene.pace.ratio() == 1);
  scene.alone(1, 1.0);
  scene.beside(StepPace::slower_after, 2.0);
  REQUIRE(scene.pace.effect() == Effect::slower);
  REQUIRE(scene.pace.bytes_per_second() == 1'000);
}

TEST_CASE("step pace: a slowdown is found after a few steps", "[unit][node]") {
  PaceScene scene;
  scene.alone(20, 0.1);
  scene.beside(StepPace::slower_after - 1, 0.106);
  REQUIRE(scene.pace.effect() == Effect::unknown);
  scene.beside(1, 0.106);
  REQUIRE(scene.pace.effect() == Effect::slower);
  REQUIRE(scene.pace.ratio() == Approx(1.06).margin(0.015));
  scene.pace.begin_again();
  REQUIRE(scene.pace.effect() == Effect::unknown);
}

TEST_CASE("step pace: a tolerated slowdown is no effect", "[unit][node]") {
  PaceScene scene(0.002);
  scene.alone(20, 0.1);
  scene.beside(StepPace::same_after - 1, 0.1015);
  REQUIRE(scene.pace.effect() == Effect::unknown);
  scene.beside(1, 0.1015);
  REQUIRE(scene.pace.effect() == Effect::none);
}

// The step in which a limit changes has a part of both.
TEST_CASE("step pace: the first step after a change is not counted", "[unit][node]") {
  PaceScene scene;
  scene.alone(20, 0.1);
  scene.pace.measured_beside(scene.step(9.0), 1);
  REQUIRE(scene.pace.is_empty());
}

TEST_CASE("step pace: an evaluation and first steps that compile are no baseline", "[unit][node]") {
  PaceScene scene;
  scene.alone(3, 30.0);
  scene.alone(20, 0.1);
  scene.alone(1, 60.0);
  scene.beside(3, 0.1);
  scene.beside(1, 60.0);
  scene.beside(5, 0.1);
  REQUIRE(scene.pace.effect() == Effect::none);
  REQUIRE(scene.pace.ratio() == Approx(1).margin(0.02));
}

TEST_CASE("step pace: steps that vary by themselves are hardly ever taken for slowed",
          "[unit][node]") {
  int slower = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    PaceScene scene(0.3, seed);
    scene.alone(32, 0.1);
    scene.beside(StepPace::slower_after, 0.1);
    while (scene.pace.effect() == Effect::unknown) scene.beside(1, 0.1);
    slower += scene.pace.effect() == Effect::slower ? 1 : 0;
  }
  REQUIRE(slower <= 8);
}

TEST_CASE("step pace: steps that vary and are slowed by a half are found", "[unit][node]") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    PaceScene scene(0.3, seed);
    scene.alone(32, 0.1);
    scene.beside(StepPace::slower_after, 0.15);
    while (scene.pace.effect() == Effect::unknown) scene.beside(1, 0.15);
    REQUIRE(scene.pace.effect() == Effect::slower);
  }
}

TEST_CASE("step pace: steps with a capture are compared with their like", "[unit][node]") {
  PaceScene scene;
  scene.alone(20, 0.1);
  scene.beside(20, 0.13, true);
  REQUIRE(scene.pace.is_empty());  // Nothing to compare them with.
  scene.alone(20, 0.13, true);
  scene.beside(StepPace::same_after, 0.13, true);
  REQUIRE(scene.pace.effect() == Effect::none);
  scene.beside(1, 0.1);
  REQUIRE(scene.pace.ratio() == Approx(1).margin(0.02));
}

TEST_CASE("step pace: times of long ago say nothing of steps today", "[unit][node]") {
  PaceScene scene;
  scene.alone(32, 0.1);
  scene.pass(StepPace::age_max + minutes(1));
  scene.beside(20, 0.2);
  REQUIRE(scene.pace.is_empty());
  scene.alone(StepPace::alone_min, 0.2);
  scene.beside(StepPace::same_after, 0.2);
  REQUIRE(scene.pace.effect() == Effect::none);
}

TEST_CASE("step pace: a time that is none is not taken", "[unit][node]") {
  PaceScene scene;
  scene.alone(20, 0);
  scene.beside(20, 0.1);
  scene.alone(20, 0.1);
  scene.beside(20, 0);
  REQUIRE(scene.pace.is_empty());
}

}  // namespace ckpt::node
