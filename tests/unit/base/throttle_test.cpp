// Goal:   bytes move at the rate that is set, a pause earns no burst, and a new rate holds at once.
// Method: takers on a clock that the test moves; the time at which each may go on is exact.
#include "base/throttle.hpp"
#include "base/spawn.hpp"

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "support/fake_clock.hpp"

namespace ckpt::test {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ThrottleFixture {
 public:
  void take(std::uint64_t bytes, int takers = 1) {
    for (int taker = 0; taker < takers; ++taker) {
      run_detached(context.get_executor(), take_and_note(*throttle, bytes));
    }
    clock.poll();
  }
  // When each went on, since `began`.
  std::vector<Duration> waits() const {
    std::vector<Duration> all;
    for (const Time time : went_on) all.push_back(time - began);
    return all;
  }
  void begin_again() {
    went_on.clear();
    began = clock.now();
  }

  asio::io_context context;
  FakeClock clock{context};
  std::unique_ptr<Throttle> throttle = std::make_unique<Throttle>(clock, 1'000);
  std::vector<Time> went_on;
  std::vector<Errc> failed;
  Time began = clock.now();

 private:
  DetachedTask take_and_note(Throttle& from, std::uint64_t bytes) {
    const Status taken = co_await from.take(bytes);
    if (taken) went_on.push_back(clock.now());
    if (!taken) failed.push_back(taken.error().code());
  }
};

}  // namespace

TEST_CASE_METHOD(ThrottleFixture, "throttle: without a rate nothing waits", "[unit][base]") {
  throttle->set_rate(0);
  take(~0ull, 3);
  REQUIRE(went_on.size() == 3);
}

TEST_CASE_METHOD(ThrottleFixture, "throttle: takers go on at the rate, in the order they came",
                 "[unit][base]") {
  take(1'000, 4);
  clock.advance(seconds(10));
  REQUIRE(waits() == std::vector<Duration>{seconds(0), seconds(1), seconds(2), seconds(3)});
}

TEST_CASE_METHOD(ThrottleFixture, "throttle: a pause earns no burst", "[unit][base]") {
  take(1'000);
  clock.advance(seconds(100));
  begin_again();
  take(1'000, 3);
  clock.advance(seconds(10));
  REQUIRE(waits() == std::vector<Duration>{seconds(0), seconds(1), seconds(2)});
}

TEST_CASE_METHOD(ThrottleFixture, "throttle: odd sizes and rates keep the rate", "[unit][base]") {
  throttle->set_rate(777);
  take(333, 1'000);
  clock.advance(seconds(1'000));
  REQUIRE(went_on.size() == 1'000);
  const double expected = 999 * 333 / 777.0;
  const double waited = std::chrono::duration<double>(went_on.back() - began).count();
  REQUIRE(waited == Approx(expected).epsilon(1e-6));
  REQUIRE(throttle->bytes_taken() == 333'000);
}

// A flush that is at its lowest rate when the job is closed must not go on at that rate.
TEST_CASE_METHOD(ThrottleFixture, "throttle: those who wait go on when the limit is lifted",
                 "[unit][base]") {
  take(1'000'000, 3);
  clock.advance(milliseconds(500));
  REQUIRE(went_on.size() == 1);
  throttle->set_rate(0);
  clock.poll();
  REQUIRE(waits() == std::vector<Duration>{seconds(0), milliseconds(500), milliseconds(500)});
}

TEST_CASE_METHOD(ThrottleFixture, "throttle: a new rate holds for what is not paid yet",
                 "[unit][base]") {
  take(1'000, 3);
  clock.advance(milliseconds(500));  // The first is half paid.
  throttle->set_rate(500);
  clock.advance(seconds(10));
  REQUIRE(waits() == std::vector<Duration>{seconds(0), milliseconds(1'500), milliseconds(3'500)});
  begin_again();
  take(500, 2);
  throttle->set_rate(5'000);
  clock.advance(seconds(10));
  REQUIRE(waits() == std::vector<Duration>{seconds(0), milliseconds(100)});
}

TEST_CASE_METHOD(ThrottleFixture, "throttle: its end ends every wait", "[unit][base]") {
  take(1'000, 3);
  throttle.reset();
  clock.poll();
  REQUIRE(went_on.size() == 1);
  REQUIRE(failed == std::vector<Errc>{Errc::cancelled, Errc::cancelled});
}

}  // namespace ckpt::test
