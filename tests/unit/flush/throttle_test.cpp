// Goal:   bytes move at the rate that was set, and a pause buys at most a second of them.
// Method: takers on a clock that the test moves; the time at which each may go on is exact.
#include "flush/throttle.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "support/fake_clock.hpp"

namespace ckpt::test {

namespace {

Job take_and_note(flush::Throttle& throttle, Clock& clock, std::uint64_t bytes,
                  std::vector<Time>& times) {
  const Status taken = co_await throttle.take(bytes);
  if (taken) times.push_back(clock.now());
}

}  // namespace

TEST_CASE("throttle: without a rate nothing waits", "[unit][flush]") {
  asio::io_context context;
  FakeClock clock(context);
  flush::Throttle throttle(clock, 0);
  std::vector<Time> times;
  asio::co_spawn(context, take_and_note(throttle, clock, ~0ull, times), asio::detached);
  clock.poll();
  REQUIRE(times.size() == 1);
}

TEST_CASE("throttle: takers go on at the rate, in the order they came", "[unit][flush]") {
  asio::io_context context;
  FakeClock clock(context);
  flush::Throttle throttle(clock, 1'000);
  std::vector<Time> times;
  const Time start = clock.now();
  for (int taker = 0; taker < 4; ++taker) {
    asio::co_spawn(context, take_and_note(throttle, clock, 1'000, times), asio::detached);
  }
  clock.advance(std::chrono::seconds(10));
  REQUIRE(times.size() == 4);
  for (std::size_t taker = 0; taker < 4; ++taker) {
    REQUIRE(times[taker] - start == std::chrono::seconds(taker));
  }
  // Ten seconds of quiet are worth one: one taker goes at once, the next a second later.
  times.clear();
  clock.advance(std::chrono::seconds(10));
  const Time again = clock.now();
  for (int taker = 0; taker < 2; ++taker) {
    asio::co_spawn(context, take_and_note(throttle, clock, 1'000, times), asio::detached);
  }
  clock.advance(std::chrono::seconds(10));
  REQUIRE(times.size() == 2);
  REQUIRE(times[0] == again);
  REQUIRE(times[1] - again == std::chrono::seconds(1));
}

}  // namespace ckpt::test
