// Goal:   a daemon that is away is asked less and less often, and at once again after it was there.
// Method: take one pause after the other, and say between them how long a connection held.
#include "client/reconnect_pause.hpp"

#include <catch2/catch.hpp>

namespace ckpt::client {

TEST_CASE("reconnect pause: twice as long each time, up to ten seconds", "[unit][client]") {
  ReconnectPause pause;
  for (const int milliseconds : {50, 100, 200, 400, 800, 1600, 3200, 6400, 10'000, 10'000})
    CHECK(pause.next(true) == std::chrono::milliseconds(milliseconds));
}

TEST_CASE("reconnect pause: only a connection that held makes it short again", "[unit][client]") {
  ReconnectPause pause;
  for (int count = 0; count < 20; ++count) pause.next(true);
  pause.connection_ended(ReconnectPause::stable_time - Duration(1));
  CHECK(pause.next(true) == ReconnectPause::longest);
  pause.connection_ended(ReconnectPause::stable_time);
  CHECK(pause.next(true) == ReconnectPause::first);
  CHECK(pause.next(true) == 2 * ReconnectPause::first);
}

}  // namespace ckpt::client
