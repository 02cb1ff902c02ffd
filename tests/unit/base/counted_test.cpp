// Goal:   a text for people has the noun that fits its number.
// Method: the numbers around one.
#include "base/counted.hpp"

#include <catch2/catch.hpp>

namespace ckpt {

TEST_CASE("counted: one is no plural", "[unit][base]") {
  CHECK(counted(0, "rank") == "0 ranks");
  CHECK(counted(1, "rank") == "1 rank");
  CHECK(counted(2, "rank") == "2 ranks");
}

}  // namespace ckpt
