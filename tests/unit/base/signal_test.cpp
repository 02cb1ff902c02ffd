// Goal:   a wait ends exactly once, for the reason that came first, and no order of destruction of
//         context, clock and signal crashes or runs a dead frame.
// Method: coroutines on a fake clock; then every order of destruction with a suspended wait, under
//         the address sanitizer in CI.
#include "base/signal.hpp"

#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "base/spawn.hpp"
#include "support/fake_clock.hpp"

namespace ckpt::test {
namespace {

using std::chrono::milliseconds;

// The ends of waits; `frames` counts the frames that live.
struct Record {
  std::vector<int> order;
  std::vector<std::optional<Result<bool>>> results;
  int frames = 0;
};

struct FrameCount {
  explicit FrameCount(int& the_count) : count(the_count) { ++count; }
  ~FrameCount() { --count; }
  int& count;
};

DetachedTask wait_once(Signal& signal, Time deadline, Record& record, int number) {
  const FrameCount counted(record.frames);
  auto result = co_await signal.wait_until(deadline);
  record.order.push_back(number);
  record.results.emplace_back(std::move(result));
}

void start(asio::io_context& context, Signal& signal, Time deadline, Record& record, int number) {
  run_detached(context.get_executor(), wait_once(signal, deadline, record, number));
}

TEST_CASE("signal: a notification wakes all that wait, in the order they came", "[unit][base]") {
  asio::io_context context;
  FakeClock clock(context);
  Signal signal(clock);
  Record record;
  for (int i = 0; i < 5; ++i) start(context, signal, no_deadline, record, i);
  clock.poll();
  CHECK(record.order.empty());
  signal.notify_all();
  CHECK(record.order.empty());  // Woken from the executor, not inside the call.
  clock.poll();
  CHECK(record.order == std::vector<int>{0, 1, 2, 3, 4});
  for (const auto& result : record.results) CHECK(**result == true);
}

TEST_CASE("signal: a notification without a waiter is lost", "[unit][base]") {
  asio::io_context context;
  FakeClock clock(context);
  Signal signal(clock);
  Record record;
  signal.notify_all();
  start(context, signal, clock.after(milliseconds(10)), record, 0);
  clock.advance(milliseconds(9));
  CHECK(record.order.empty());
  clock.advance(milliseconds(1));
  REQUIRE(record.results.size() == 1);
  CHECK(**record.results[0] == false);
}

TEST_CASE("signal: a deadline that has passed ends the wait without time passing", "[unit][base]") {
  asio::io_context context;
  FakeClock clock(context);
  Signal signal(clock);
  Record record;
  start(context, signal, clock.now(), record, 0);
  clock.poll();
  REQUIRE(record.results.size() == 1);
  CHECK(**record.results[0] == false);
}

TEST_CASE("signal: the reason that came first counts", "[unit][base]") {
  asio::io_context context;
  FakeClock clock(context);
  Signal signal(clock);
  Record record;
  start(context, signal, clock.after(milliseconds(1)), record, 0);
  clock.poll();
  signal.notify_all();
  signal.close();
  clock.advance(milliseconds(5));
  REQUIRE(record.results.size() == 1);
  CHECK(**record.results[0] == true);
  CHECK(clock.pending() == 0);  // The alarm went with the wait.
}

TEST_CASE("signal: closing ends waits, now and later, with cancelled", "[unit][base]") {
  asio::io_context context;
  FakeClock clock(context);
  Signal signal(clock);
  Record record;
  start(context, signal, no_deadline, record, 0);
  clock.poll();
  signal.close();
  start(context, signal, no_deadline, record, 1);
  clock.poll();
  REQUIRE(record.results.size() == 2);
  for (const auto& result : record.results) {
    REQUIRE(!*result);
    CHECK(result->error().code() == Errc::cancelled);
  }
}

TEST_CASE("signal: destroying the signal first ends its waits", "[unit][base]") {
  asio::io_context context;
  FakeClock clock(context);
  Record record;
  {
    Signal signal(clock);
    start(context, signal, clock.after(milliseconds(7)), record, 0);
    clock.poll();
  }
  clock.poll();
  REQUIRE(record.results.size() == 1);
  CHECK(record.results[0]->error().code() == Errc::cancelled);
  CHECK(record.frames == 0);
}

TEST_CASE("signal: destroying the signal and then the context destroys the frame", "[unit][base]") {
  Record record;
  {
    asio::io_context context;
    FakeClock clock(context);
    Signal signal(clock);
    start(context, signal, clock.after(milliseconds(7)), record, 0);
    clock.poll();
    CHECK(record.frames == 1);
  }
  CHECK(record.frames == 0);
  CHECK(record.order.empty());
}

TEST_CASE("signal: destroying the context first destroys the frame at once", "[unit][base]") {
  const bool notify_before = GENERATE(false, true);
  Record record;
  auto context = std::make_unique<asio::io_context>();
  FakeClock clock(*context);
  auto signal = std::make_unique<Signal>(clock);
  start(*context, *signal, clock.after(milliseconds(7)), record, 0);
  start(*context, *signal, no_deadline, record, 1);
  clock.poll();
  if (notify_before) signal->notify_all();
  CHECK(record.frames == 2);
  context.reset();
  CHECK(record.frames == 0);
  signal->notify_all();
  signal->close();
  signal.reset();
  CHECK(record.order.empty());
}

TEST_CASE("signal: the clock may go before context and signal", "[unit][base]") {
  Record record;
  asio::io_context context;
  auto clock = std::make_unique<FakeClock>(context);
  Signal signal(*clock);
  start(context, signal, clock->after(milliseconds(7)), record, 0);
  clock->poll();
  clock.reset();
  signal.notify_all();
  context.restart();
  context.poll();
  REQUIRE(record.results.size() == 1);
  CHECK(**record.results[0] == true);
}

TEST_CASE("signal: a frame killed with its context may destroy the signal it waits for",
          "[unit][base]") {
  struct Owner {
    explicit Owner(Clock& clock) : signal(clock) {}
    static DetachedTask run(std::shared_ptr<Owner> owner, Time deadline) {
      const auto result = co_await owner->signal.wait_until(deadline);
      (void)result;
    }
    Signal signal;
  };
  auto context = std::make_unique<asio::io_context>();
  FakeClock clock(*context);
  std::weak_ptr<Owner> seen;
  {
    auto owner = std::make_shared<Owner>(clock);
    seen = owner;
    run_detached(context->get_executor(), Owner::run(owner, clock.after(milliseconds(3))));
  }
  clock.poll();
  CHECK(!seen.expired());
  context.reset();
  CHECK(seen.expired());
}

}  // namespace
}  // namespace ckpt::test
