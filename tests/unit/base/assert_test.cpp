// Goal:   a broken invariant is never passed over, and tests can require that one breaks.
// Method: trap it; nest traps; and let a forked child break one with no trap.
#include "base/assert.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "support/assertion_trap.hpp"

namespace ckpt::test {
namespace {

int checked(int value) {
  CKPT_ASSERT(value > 0);
  return value;
}

TEST_CASE("assert: a true claim passes and a false one names itself", "[unit][base]") {
  CHECK(checked(1) == 1);
  const AssertionTrap trap;
  try {
    checked(0);
    FAIL("the claim is false");
  } catch (const TrippedAssertion& tripped) {
    CHECK(tripped.claim == "value > 0");
  }
}

TEST_CASE("assert: the trap gives the handler back that it found", "[unit][base]") {
  const AssertionHandler before = set_assertion_handler(nullptr);
  REQUIRE_TRIPS(checked(-1));
  CHECK(set_assertion_handler(before) == nullptr);
}

TEST_CASE("assert: without a handler the process aborts", "[unit][base]") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Catch's own handlers would report the signal as a failed test.
    std::signal(SIGABRT, SIG_DFL);
    ::close(STDERR_FILENO);
    set_assertion_handler(nullptr);
    checked(0);
    std::_Exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
}

}  // namespace
}  // namespace ckpt::test
