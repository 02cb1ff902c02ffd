// Goal:   a good test is not caught.
// Method: write one.
#include <catch2/catch.hpp>

TEST_CASE("task: an answer is given", "[unit][base]") {
  REQUIRE(answer(1) == 2);
}
