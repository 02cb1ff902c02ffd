#include <catch2/catch.hpp>

TEST_CASE("it runs", "[unit]") {
  run();
}
