// Goal:   the mark in a path says from where on links are refused, and nothing escapes below it.
// Method: paths with and without the mark, and those that try to leave.
#include "os/path.hpp"

#include <catch2/catch.hpp>

namespace ckpt::os {

TEST_CASE("path: the part beneath is split off at the mark", "[unit][os]") {
  const auto parts = split(join(beneath("/a/link/", "work"), "file"));
  REQUIRE(parts.has_value());
  REQUIRE(parts->root == "/a/link");
  REQUIRE(parts->names == std::vector<std::string>{"work", "file"});
  const auto itself = split(beneath("/a", "."));
  REQUIRE(itself.has_value());
  REQUIRE(itself->root == "/a");
  REQUIRE(itself->names.empty());
  const auto plain = split("/a/b/c");
  REQUIRE(plain->root == "/a/b");
  REQUIRE(plain->names == std::vector<std::string>{"c"});
  REQUIRE(split("c")->root == ".");
  REQUIRE(split("/c")->root == "/");
  REQUIRE(split("/")->root == "/");
  REQUIRE(display(beneath("/a", "b/c")) == "/a/b/c");
  REQUIRE(display(beneath("/a/b", ".")) == "/a/b");
  REQUIRE(display("/a/b/.") == "/a/b");
  REQUIRE(display("/.") == "/.");
  REQUIRE(file_name("/a/b/") == "b");
}

TEST_CASE("path: nothing leaves from below the mark", "[unit][os]") {
  REQUIRE(split("").error().code() == Errc::invalid_argument);
  REQUIRE(split(std::string_view("/a\0b", 4)).error().code() == Errc::invalid_argument);
  REQUIRE(split(beneath("/a", "../b")).error().code() == Errc::invalid_argument);
  REQUIRE(split(beneath("/a", "b/../../c")).error().code() == Errc::invalid_argument);
  REQUIRE(split(beneath("/a", "b//c/./d"))->names.back() == "d");
}

}  // namespace ckpt::os
