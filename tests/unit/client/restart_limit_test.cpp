// Goal:   a daemon that dies now and then is back at once, and one that keeps dying costs nothing.
// Method: start it at given times and ask when the next start may be.
#include "client/restart_limit.hpp"

#include <catch2/catch.hpp>

namespace ckpt::client {

TEST_CASE("restart limit: five at once, then one a minute, then five again", "[unit][client]") {
  RestartLimit limit;
  Time now{};
  now += std::chrono::hours(1);
  for (int count = 0; count < 5; ++count) {
    CHECK(limit.next(now) == now);
    limit.started(now);
  }
  CHECK(limit.next(now) == now + std::chrono::minutes(1));
  CHECK(limit.next(now + std::chrono::seconds(59)) == now + std::chrono::minutes(1));

  // A minute apart for as long as the window is full.
  for (int minute = 1; minute < 10; ++minute) {
    const Time then = now + std::chrono::minutes(minute);
    CHECK(limit.next(then) == then);
    limit.started(then);
    CHECK(limit.next(then) == then + std::chrono::minutes(1));
  }
  const Time much_later = now + std::chrono::minutes(30);
  CHECK(limit.next(much_later) == much_later);
}

TEST_CASE("restart limit: it stays small however long the daemon keeps dying", "[unit][client]") {
  RestartLimit limit;
  Time now{};
  for (int count = 0; count < 1000; ++count) {
    now = limit.next(now);
    limit.started(now);
  }
  // All but the first burst in each window were a minute apart.
  CHECK(now >= Time{} + std::chrono::minutes(900));
}

}  // namespace ckpt::client
