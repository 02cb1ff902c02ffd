// AssertionTrap: turns a broken invariant into an exception, so that a test can require it.
#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "base/assert.hpp"

namespace ckpt::test {

// A trapped assertion throws this. Private to the trap: no code under test may catch it.
struct TrippedAssertion {
  std::string claim;
};

// While one lives, CKPT_ASSERT throws TrippedAssertion instead of aborting.
class AssertionTrap {
 public:
  AssertionTrap();
  ~AssertionTrap();
  AssertionTrap(const AssertionTrap&) = delete;
  AssertionTrap& operator=(const AssertionTrap&) = delete;

 private:
  AssertionHandler before_;
};

}  // namespace ckpt::test

// Requires that the expression breaks an invariant. Not for noexcept functions and destructors,
// out of which nothing can be thrown.
#define REQUIRE_TRIPS(...)                                                  \
  do {                                                                      \
    const ::ckpt::test::AssertionTrap ckpt_trap;                            \
    REQUIRE_THROWS_AS((void)(__VA_ARGS__), ::ckpt::test::TrippedAssertion); \
  } while (false)
