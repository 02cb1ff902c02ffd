// TokenBucket: limits bytes to a rate, and saves up an unused allowance for a burst.
//
// Threads: one.
#pragma once

#include <chrono>
#include <cstdint>

namespace ckpt::device {

class TokenBucket {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `rate` in bytes per second; 0: no limit.
  TokenBucket(std::uint64_t rate, std::uint64_t burst) : rate_(rate), burst_(burst) {}

  // Takes `bytes` and returns true if they may go now. A full bucket also lets more than the burst
  // go, and then owes the rest, so that no size waits forever.
  bool take(std::uint64_t bytes, Time now);

 private:
  std::uint64_t rate_;
  std::uint64_t burst_;
  double tokens_ = 0;
  Time filled_at_{};
};

}  // namespace ckpt::device
