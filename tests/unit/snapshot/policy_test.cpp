// Goal:   every rank answers alike for a step, and a time interval leaves it to the coordinator.
// Method: the steps around multiples of the interval.
#include "snapshot/policy.hpp"

#include <catch2/catch.hpp>

namespace ckpt::snapshot {

TEST_CASE("policy: by steps, every n-th is due", "[unit][snapshot]") {
  const Interval every_ten{10, {}};
  REQUIRE(is_due(every_ten, Step{0}));
  REQUIRE_FALSE(is_due(every_ten, Step{1}));
  REQUIRE_FALSE(is_due(every_ten, Step{9}));
  REQUIRE(is_due(every_ten, Step{10}));
  REQUIRE_FALSE(is_due(every_ten, Step{11}));
  REQUIRE(is_due(Interval{1, {}}, Step{UINT64_MAX}));
}

TEST_CASE("policy: by time any step may be announced and never is never", "[unit][snapshot]") {
  REQUIRE(is_due(Interval{0, std::chrono::minutes(15)}, Step{7}));
  REQUIRE_FALSE(is_due(Interval{}, Step{0}));
}

}  // namespace ckpt::snapshot
