// Goal:   a daemon that answers nothing is noticed once, and so is its return; one that answers,
//         or of which nothing was wanted, never is.
// Method: a clock that passes when the test says so, and can be found to have passed unawares, as
//         it has for a process that was stopped itself.
#include "client/silence_watch.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "support/fake_clock.hpp"

namespace ckpt::client {
namespace {

using std::chrono::seconds;

class LateClock final : public test::FakeClock {
 public:
  using FakeClock::FakeClock;
  Time now() const override { return FakeClock::now() + late; }
  std::unique_ptr<Timer> call_at(Time deadline, std::function<void()> expired) override {
    return FakeClock::call_at(deadline - late, std::move(expired));
  }
  Duration late{};
};

struct WatchingTrainer {
  asio::io_context context;
  LateClock clock{context};
  int asked = 0;
  std::vector<bool> told;
  SilenceWatch watch{clock, [this] { ++asked; },
                     [this](bool is_silent) { told.push_back(is_silent); }};
};

}  // namespace

TEST_CASE("silence watch: a daemon that answers nothing is logged once, and its return",
          "[unit][client]") {
  WatchingTrainer trainer;
  trainer.clock.advance(seconds(100));
  const Time said_at = trainer.clock.now();
  for (int second = 0; second < 12; ++second) {
    REQUIRE(trainer.told.empty());
    REQUIRE(trainer.asked == (second >= 4 ? 1 : 0));
    trainer.watch.said();
    trainer.clock.advance(seconds(1));
  }
  REQUIRE(trainer.told == std::vector{true});
  REQUIRE(trainer.watch.silent_since() == said_at);
  for (int second = 0; second < 100; ++second) {
    trainer.watch.said();
    trainer.clock.advance(seconds(1));
  }
  REQUIRE(trainer.told == std::vector{true});
  REQUIRE(trainer.asked == 1);
  trainer.watch.heard();
  REQUIRE(trainer.told == std::vector{true, false});

  trainer.watch.said();
  trainer.clock.advance(seconds(12));
  REQUIRE(trainer.told == std::vector{true, false, true});
}

TEST_CASE("silence watch: a daemon that answers in time, or need not, is not silent",
          "[unit][client]") {
  WatchingTrainer trainer;
  SECTION("nothing was said") {
    trainer.clock.advance(seconds(100));
    trainer.watch.heard();
    trainer.clock.advance(seconds(100));
    REQUIRE(trainer.asked == 0);
  }
  SECTION("the answer comes before it is asked for") {
    trainer.watch.said();
    trainer.clock.advance(seconds(3));
    trainer.watch.heard();
    trainer.clock.advance(seconds(100));
    REQUIRE(trainer.asked == 0);
  }
  SECTION("the answer comes when it is asked for") {
    for (int time = 1; time < 20; ++time) {
      trainer.watch.said();
      trainer.clock.advance(seconds(11));
      REQUIRE(trainer.asked == time);
      trainer.watch.heard();
    }
  }
  SECTION("the daemon is gone, which is another matter") {
    trainer.watch.said();
    trainer.clock.advance(seconds(11));
    trainer.watch.forget();
    trainer.clock.advance(seconds(100));
  }
  REQUIRE(trainer.told.empty());
}

TEST_CASE("silence watch: a trainer that was stopped itself gives the daemon its time",
          "[unit][client]") {
  WatchingTrainer trainer;
  trainer.watch.said();
  trainer.clock.advance(seconds(5));
  REQUIRE(trainer.asked == 1);
  trainer.clock.late = seconds(60);
  trainer.clock.advance(seconds(8));
  REQUIRE(trainer.told.empty());
  trainer.clock.advance(seconds(8));
  REQUIRE(trainer.told == std::vector{true});
}

}  // namespace ckpt::client
