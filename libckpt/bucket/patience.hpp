// Patience: how long a program waits for a server of buckets, and what it says meanwhile.
//
// Threads: `is_interrupted` is asked from several.
#pragma once

#include <functional>

#include "base/log.hpp"
#include "bucket/environment.hpp"
#include "bucket/retry.hpp"

namespace ckpt::bucket {

// A request whose server has not answered for this long is named once in a while.
inline constexpr Duration silence_named_after = std::chrono::seconds(2);
inline constexpr double silence_named_every_seconds = 60;

struct Patience {
  // Until the server has answered once. A person who mistyped an endpoint waits for nothing.
  int first_tries_max = tries_max;
  LogLevel silence_level = LogLevel::info;  // The line that names a silent server has it.
  std::function<bool()> is_interrupted;     // Then nothing is tried again. Empty: never.
};

// BucketUse: a program's way to use buckets.
struct BucketUse {
  Environment environment = Environment::of_process();
  Patience patience;
};

}  // namespace ckpt::bucket
