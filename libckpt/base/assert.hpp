// Assert: for conditions that only a bug can break. Always on; calls the handler, then aborts.
#pragma once

#include <source_location>

namespace ckpt {

// Returns only in tests, by throwing.
using AssertionHandler = void (*)(const char* claim, const std::source_location& where);
// Returns the handler that was there before.
AssertionHandler set_assertion_handler(AssertionHandler handler);

[[noreturn]] void assertion_failed(
    const char* claim, const std::source_location& where = std::source_location::current());

}  // namespace ckpt

#define CKPT_ASSERT(claim) (static_cast<bool>(claim) ? void(0) : ::ckpt::assertion_failed(#claim))
