// Goal:   what a thread of ours reads of the environment is what it was at one moment.
// Method: copy it, change the process's own, and compare; then change the copy.
#include "os/environment_copy.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>

namespace ckpt::os {

TEST_CASE("environment copy: later changes of the process are not seen", "[unit][os]") {
  ::setenv("CKPT_TEST_COPIED", "one=1", 1);
  ::setenv("CKPT_TEST_COPIED_EMPTY", "", 1);
  const auto copy = EnvironmentCopy::of_process();
  ::setenv("CKPT_TEST_COPIED", "two", 1);
  ::unsetenv("CKPT_TEST_COPIED_EMPTY");
  ::setenv("CKPT_TEST_COPIED_LATE", "three", 1);
  CHECK(copy.find("CKPT_TEST_COPIED") == "one=1");
  CHECK(copy.find("CKPT_TEST_COPIED_EMPTY") == "");
  CHECK_FALSE(copy.find("CKPT_TEST_COPIED_LATE"));
  CHECK_FALSE(copy.find("CKPT_TEST_COPIE"));
  ::unsetenv("CKPT_TEST_COPIED");
  ::unsetenv("CKPT_TEST_COPIED_LATE");
}

TEST_CASE("environment copy: a variable is there once, or not at all", "[unit][os]") {
  EnvironmentCopy copy;
  copy.set("NAME", "one");
  copy.set("NAMES", "other");
  copy.set("NAME", "two");
  CHECK(copy.entries() == std::vector<std::string>{"NAMES=other", "NAME=two"});
  copy.remove("NAME");
  CHECK(copy.entries() == std::vector<std::string>{"NAMES=other"});
}

}  // namespace ckpt::os
