// Sanitized: whether the tests were built with a sanitizer, for what it cannot do, or does slowly.
#pragma once

namespace ckpt::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool is_thread_sanitized = true;
#elif defined(__has_feature)
inline constexpr bool is_thread_sanitized = __has_feature(thread_sanitizer);  // clang's words.
#else
inline constexpr bool is_thread_sanitized = false;
#endif

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool is_sanitized = true;
#elif defined(__has_feature)
inline constexpr bool is_sanitized = __has_feature(address_sanitizer) || is_thread_sanitized;
#else
inline constexpr bool is_sanitized = is_thread_sanitized;
#endif

}  // namespace ckpt::test
