// Goal:   a limit goes down fast and up slowly, ends where it is of no use, and never starves.
// Method: by hand, through every change.
#include "node/rate_limit.hpp"

#include <catch2/catch.hpp>

namespace ckpt::node {

TEST_CASE("rate limit: none until training is disturbed", "[unit][node]") {
  RateLimit limit;
  limit.undisturbed();
  REQUIRE(limit.value() == 0);
  limit.disturbed(0);  // Nothing was moved.
  REQUIRE(limit.value() == 0);
  limit.disturbed(1'000 * MiB);
  REQUIRE(limit.value() == 700 * MiB);
}

TEST_CASE("rate limit: down by a factor, up by a part, until it is of no use", "[unit][node]") {
  RateLimit limit;
  limit.disturbed(1'600 * MiB);
  limit.disturbed(1'120 * MiB);
  REQUIRE(limit.value() == 784 * MiB);
  for (int n = 0; n < 8; ++n) limit.undisturbed();
  REQUIRE(limit.value() == 1'584 * MiB);
  limit.undisturbed();
  REQUIRE(limit.value() == 0);
}

TEST_CASE("rate limit: work that is slower than its limit is slowed from where it is",
          "[unit][node]") {
  RateLimit limit;
  limit.disturbed(1'000 * MiB);
  limit.disturbed(200 * MiB);
  REQUIRE(limit.value() == 140 * MiB);
}

TEST_CASE("rate limit: it never falls below its minimum", "[unit][node]") {
  RateLimit limit;
  for (int n = 0; n < 100; ++n) limit.disturbed(500 * MiB);
  REQUIRE(limit.value() == RateLimit::lowest);
  limit.set_minimum(300 * MiB);
  REQUIRE(limit.value() == 300 * MiB);
  limit.disturbed(MiB);
  REQUIRE(limit.value() == 300 * MiB);
  limit.set_minimum(1);
  REQUIRE(limit.minimum() == RateLimit::lowest);
}

TEST_CASE("rate limit: slow work that could not be slower is soon free again", "[unit][node]") {
  RateLimit limit;
  limit.disturbed(20 * MiB);
  REQUIRE(limit.value() == RateLimit::lowest);
  limit.undisturbed();
  REQUIRE(limit.value() == 0);
}

}  // namespace ckpt::node
