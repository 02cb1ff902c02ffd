#include "base/assert.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace ckpt {

namespace {
std::atomic<AssertionHandler> current_handler{nullptr};
}  // namespace

AssertionHandler set_assertion_handler(AssertionHandler handler) {
  return current_handler.exchange(handler);
}

void assertion_failed(const char* claim, const std::source_location& where) {
  if (const AssertionHandler handler = current_handler.load()) {
    handler(claim, where);
  } else {
    std::fprintf(stderr, "libckpt: broken invariant: %s, at %s:%u in %s\n", claim,
                 where.file_name(), static_cast<unsigned>(where.line()), where.function_name());
  }
  std::abort();
}

}  // namespace ckpt
