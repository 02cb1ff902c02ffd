// Goal:   a timer fires once or, cancelled, never; sleeping ends however the clock ends.
// Method: the system clock with deadlines that are past or a millisecond away, so that nothing
//         depends on how fast the machine is; the fake clock for order.
#include "base/clock.hpp"

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "base/spawn.hpp"
#include "support/fake_clock.hpp"

namespace ckpt::test {
namespace {

std::unique_ptr<Clock> make_clock(bool is_fake, asio::io_context& context) {
  if (is_fake) return std::make_unique<FakeClock>(context);
  return make_system_clock(context.get_executor());
}

using std::chrono::hours;
using std::chrono::milliseconds;

DetachedTask sleep_and_tell(Clock& clock, Time deadline, std::optional<Status>& ended) {
  auto status = co_await sleep_until(clock, deadline);
  ended.emplace(std::move(status));
}

TEST_CASE("clock: a timer fires once, not before its deadline, from the executor", "[unit][base]") {
  asio::io_context context;
  const auto clock = make_system_clock(context.get_executor());
  const Time deadline = clock->after(milliseconds(1));
  int fired = 0;
  Time fired_at{};
  const auto timer = clock->call_at(deadline, [&] {
    ++fired;
    fired_at = clock->now();
  });
  CHECK(fired == 0);
  context.run();
  CHECK(fired == 1);
  CHECK(fired_at >= deadline);
}

TEST_CASE("clock: a timer with a past deadline fires, later", "[unit][base]") {
  asio::io_context context;
  const auto clock = make_system_clock(context.get_executor());
  int fired = 0;
  const auto timer = clock->call_at(clock->now() - hours(1), [&] { ++fired; });
  CHECK(fired == 0);
  context.run();
  CHECK(fired == 1);
}

TEST_CASE("clock: a destroyed timer is never called, even when it was due", "[unit][base]") {
  asio::io_context context;
  const auto clock = make_system_clock(context.get_executor());
  int fired = 0;
  std::unique_ptr<Timer> second;
  // Both are due in the same turn of the loop: the first takes the second back.
  const auto first = clock->call_at(clock->now() - hours(2), [&] {
    ++fired;
    second.reset();
  });
  second = clock->call_at(clock->now() - hours(1), [&] { fired += 100; });
  context.run();
  CHECK(fired == 1);
}

TEST_CASE("clock: a timer may destroy itself from its own function", "[unit][base]") {
  asio::io_context context;
  const auto clock = make_system_clock(context.get_executor());
  int fired = 0;
  std::unique_ptr<Timer> timer;
  timer = clock->call_at(clock->now(), [&] {
    timer.reset();
    ++fired;
  });
  context.run();
  CHECK(fired == 1);
}

TEST_CASE("clock: timers and clock may outlive the context", "[unit][base]") {
  auto context = std::make_unique<asio::io_context>();
  auto clock = make_system_clock(context->get_executor());
  int fired = 0;
  auto timer = clock->call_at(clock->after(hours(1)), [&] { ++fired; });
  context.reset();
  timer.reset();
  clock.reset();
  CHECK(fired == 0);
}

TEST_CASE("clock: a sleep ends with success at its deadline", "[unit][base]") {
  asio::io_context context;
  const auto clock = make_system_clock(context.get_executor());
  std::optional<Status> ended;
  const Time deadline = clock->after(milliseconds(2));
  run_detached(context.get_executor(), sleep_and_tell(*clock, deadline, ended));
  context.run();
  REQUIRE(ended);
  CHECK(*ended);
  CHECK(clock->now() >= deadline);
}

TEST_CASE("clock: destroying the clock ends a sleep with cancelled", "[unit][base]") {
  asio::io_context context;
  std::unique_ptr<Clock> clock = make_clock(GENERATE(false, true), context);
  std::optional<Status> ended;
  run_detached(context.get_executor(), sleep_and_tell(*clock, clock->after(hours(1)), ended));
  context.poll();
  CHECK(!ended);
  clock.reset();
  context.restart();
  context.run();
  REQUIRE(ended);
  REQUIRE(!*ended);
  CHECK(ended->error().code() == Errc::cancelled);
}

TEST_CASE("clock: one that is closed ends every wait, also later ones, and tells the time",
          "[unit][base]") {
  asio::io_context context;
  const std::unique_ptr<Clock> clock = make_clock(GENERATE(false, true), context);
  std::optional<Status> first, second;
  run_detached(context.get_executor(), sleep_and_tell(*clock, clock->after(hours(1)), first));
  context.poll();
  clock->close();
  run_detached(context.get_executor(), sleep_and_tell(*clock, clock->now(), second));
  context.restart();
  context.run();
  for (const auto& ended : {first, second}) {
    REQUIRE(ended);
    REQUIRE(!*ended);
    CHECK(ended->error().code() == Errc::cancelled);
  }
  CHECK(clock->now() > Time());
}

TEST_CASE("clock: destroying the context with a sleeper in it crashes nobody", "[unit][base]") {
  std::optional<Status> ended;
  auto context = std::make_unique<asio::io_context>();
  const auto clock = make_system_clock(context->get_executor());
  run_detached(context->get_executor(), sleep_and_tell(*clock, clock->after(hours(1)), ended));
  context->poll();
  context.reset();
  CHECK(!ended);
}

TEST_CASE("clock: the fake one fires in the order of deadlines, each at its own time",
          "[unit][base]") {
  asio::io_context context;
  FakeClock clock(context);
  const Time start = clock.now();
  std::vector<std::pair<int, Duration>> fired;
  std::vector<std::unique_ptr<Timer>> timers;
  for (const int delay : {3, 1, 2, 1}) {
    timers.push_back(clock.call_at(start + milliseconds(delay), [&fired, &clock, start, delay] {
      fired.emplace_back(delay, clock.now() - start);
    }));
  }
  clock.advance(milliseconds(2));
  CHECK(fired == std::vector<std::pair<int, Duration>>{
                     {1, milliseconds(1)}, {1, milliseconds(1)}, {2, milliseconds(2)}});
  timers.clear();
  clock.advance(hours(1));
  CHECK(fired.size() == 3);
}

}  // namespace
}  // namespace ckpt::test
