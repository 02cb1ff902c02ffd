// Goal:   `ckpt-gpu` looks often while copies end, and seldom while the trainer's work is far from
//         its end.
// Method: rows of looks, one after the other.
#include "device/poll_pause.hpp"

#include <catch2/catch.hpp>

namespace ckpt::test {

using device::PollPause;

TEST_CASE("poll pause: it grows to a limit while nothing has arrived", "[unit][device]") {
  PollPause pause;
  REQUIRE(pause.length() == PollPause::shortest);
  for (int look = 0; look < 3; ++look) {
    const auto before = pause.length();
    pause.looked(PollPause::Seen::far);
    REQUIRE(pause.length() == 2 * before);
  }
  for (int look = 0; look < 100; ++look) pause.looked(PollPause::Seen::far);
  REQUIRE(pause.length() == PollPause::longest);
}

TEST_CASE("poll pause: it is short again as soon as something moves", "[unit][device]") {
  for (const PollPause::Seen seen : {PollPause::Seen::moved, PollPause::Seen::under_way}) {
    PollPause pause;
    for (int look = 0; look < 100; ++look) pause.looked(PollPause::Seen::far);
    pause.looked(seen);
    REQUIRE(pause.length() == PollPause::shortest);
    pause.looked(seen);
    REQUIRE(pause.length() == PollPause::shortest);
  }
}

}  // namespace ckpt::test
