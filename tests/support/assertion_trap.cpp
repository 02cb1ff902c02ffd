#include "support/assertion_trap.hpp"

namespace ckpt::test {

namespace {
void throw_tripped(const char* claim, const std::source_location&) {
  throw TrippedAssertion{claim};
}
}  // namespace

AssertionTrap::AssertionTrap() : before_(set_assertion_handler(throw_tripped)) {}
AssertionTrap::~AssertionTrap() {
  set_assertion_handler(before_);
}

}  // namespace ckpt::test
