// Goal:   training is slowed by little more than is tolerated, and the work goes as fast as that
//         allows; ranks of different speeds are each compared with themselves.
// Method: a model of a node: its steps last longer in proportion to what is moved beside them.
#include "node/yield_control.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "base/random.hpp"

namespace ckpt::node {
namespace {

constexpr std::uint64_t full_speed = 2'000 * MiB;

class NodeModel {
 public:
  NodeModel(std::vector<double> step_seconds, double slowdown_at_full_speed,
            double variation = 0.01, std::uint64_t seed = 1)
      : seconds_(std::move(step_seconds)),
        slowdown_(slowdown_at_full_speed),
        variation_(variation),
        random_(seed) {}

  std::uint64_t speed(BackgroundWork work) const {
    const std::uint64_t limit = control.limit(work).value();
    return limit == 0 ? full_speed : std::min(limit, full_speed);
  }
  // Every rank makes as many steps. The factor by which they were longer than alone, on average.
  double train(int steps, std::vector<BackgroundWork> beside) {
    double sum = 0;
    for (int n = 0; n < steps; ++n) {
      double moved = 0;
      for (const BackgroundWork work : beside) moved += static_cast<double>(speed(work));
      const double factor = 1 + slowdown_ * moved / static_cast<double>(full_speed);
      sum += factor;
      now_ += std::chrono::milliseconds(100);
      for (std::uint32_t rank = 0; rank < seconds_.size(); ++rank) {
        StepSample sample;
        sample.rank = rank;
        const double share = static_cast<double>(random_.below(2'001)) / 1'000 - 1;
        sample.step.seconds = seconds_[rank] * factor * (1 + variation_ * share);
        sample.step.at = now_;
        sample.is_alone = beside.empty();
        for (const BackgroundWork work : beside)
          sample.beside[static_cast<std::size_t>(work)] = {1.0, speed(work)};
        control.add(sample);
      }
    }
    return sum / steps;
  }

  YieldControl control;

 private:
  std::vector<double> seconds_;
  double slowdown_, variation_;
  Random random_;
  Time now_ = Time(std::chrono::hours(1));
};

}  // namespace

TEST_CASE("yield control: training is slowed by little more than is tolerated", "[unit][node]") {
  const double at_full_speed = GENERATE(0.05, 0.1, 0.3);
  NodeModel node({0.1}, at_full_speed);
  node.train(32, {});
  node.train(100, {BackgroundWork::flush});
  const double factor = node.train(1'000, {BackgroundWork::flush});
  CHECK(factor < 1.025);
  CHECK(factor > 1.008);  // And the work is not slower than it must be.
  CHECK(node.control.step_ratio(BackgroundWork::flush).has_value());
  CHECK(node.control.limit(BackgroundWork::copies).value() == 0);
}

TEST_CASE("yield control: work that disturbs nobody is not slowed", "[unit][node]") {
  NodeModel node({0.1}, 0.005);
  node.train(32, {});
  node.train(1'000, {BackgroundWork::flush, BackgroundWork::copies});
  REQUIRE(node.control.limit(BackgroundWork::flush).value() == 0);
  REQUIRE(node.control.limit(BackgroundWork::copies).value() == 0);
}

TEST_CASE("yield control: without steps alone nothing is slowed", "[unit][node]") {
  NodeModel node({0.1}, 0.5);
  node.train(1'000, {BackgroundWork::copies});
  REQUIRE(node.control.limit(BackgroundWork::copies).value() == 0);
}

TEST_CASE("yield control: both kinds of work give way when both are under way", "[unit][node]") {
  NodeModel node({0.1}, 0.1);
  node.train(32, {});
  node.train(200, {BackgroundWork::flush, BackgroundWork::copies});
  REQUIRE(node.train(1'000, {BackgroundWork::flush, BackgroundWork::copies}) < 1.03);
  REQUIRE(node.control.limit(BackgroundWork::flush).value() != 0);
  REQUIRE(node.control.limit(BackgroundWork::copies).value() != 0);
}

// However much it slows training down: a step must become committed, and durable.
TEST_CASE("yield control: the work never starves", "[unit][node]") {
  NodeModel node({0.1}, 30.0);
  node.control.set_minimum(BackgroundWork::copies, 150 * MiB);
  node.train(32, {});
  node.train(1'000, {BackgroundWork::flush, BackgroundWork::copies});
  REQUIRE(node.control.limit(BackgroundWork::flush).value() == RateLimit::lowest);
  REQUIRE(node.control.limit(BackgroundWork::copies).value() == 150 * MiB);
}

TEST_CASE("yield control: ranks of different speeds are compared with themselves", "[unit][node]") {
  NodeModel undisturbed({0.01, 0.5, 0.1}, 0.0);
  undisturbed.train(32, {});
  undisturbed.train(500, {BackgroundWork::flush});
  REQUIRE(undisturbed.control.limit(BackgroundWork::flush).value() == 0);
  NodeModel disturbed({0.01, 0.5, 0.1}, 0.2);
  disturbed.train(32, {});
  disturbed.train(100, {BackgroundWork::flush});
  REQUIRE(disturbed.train(500, {BackgroundWork::flush}) < 1.025);
}

TEST_CASE("yield control: the rank that is slowed most decides", "[unit][node]") {
  YieldControl control;
  Time now = Time(std::chrono::hours(1));
  const auto both = [&](double first, double second, bool is_alone) {
    now += std::chrono::milliseconds(100);
    for (const auto& [rank, seconds] : {std::pair<std::uint32_t, double>{0, first}, {1, second}}) {
      StepSample sample;
      sample.rank = rank;
      sample.step = {now, seconds, false};
      sample.is_alone = is_alone;
      if (!is_alone) sample.beside[0] = {1.0, full_speed};
      control.add(sample);
    }
  };
  for (int n = 0; n < 20; ++n) both(0.1, 0.1, true);
  for (int n = 0; n < 5; ++n) both(0.1, 0.11, false);
  REQUIRE(control.limit(BackgroundWork::flush).value() == full_speed / 10 * 7);
  REQUIRE(control.step_ratio(BackgroundWork::flush) == Approx(1.1));
  SECTION("until its trainer is gone") {
    control.forget(1);
    for (int n = 0; n < 200; ++n) both(0.1, 0.11, false);
    REQUIRE(control.limit(BackgroundWork::flush).value() == 0);
  }
}

TEST_CASE("yield control: a step that the work took little of judges nothing", "[unit][node]") {
  YieldControl control;
  StepSample sample;
  sample.step.at = Time(std::chrono::hours(1));
  sample.step.seconds = 0.1;
  sample.is_alone = true;
  for (int n = 0; n < 20; ++n) control.add(sample);
  sample.is_alone = false;
  sample.step.seconds = 0.2;
  sample.beside[0] = {0.4, full_speed};
  for (int n = 0; n < 100; ++n) control.add(sample);
  REQUIRE(control.limit(BackgroundWork::flush).value() == 0);
}

}  // namespace ckpt::node
