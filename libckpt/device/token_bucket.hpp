// TokenBucket: bytes that may be sent now, at a rate, with a burst that was saved up.
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

  // True: `bytes` may go now, and are taken. More than the burst may go when the bucket is full,
  // and then leaves a debt, so that no size waits forever.
  bool take(std::uint64_t bytes, Time now);

 private:
  std::uint64_t rate_;
  std::uint64_t burst_;
  double tokens_ = 0;
  Time filled_at_{};
};

}  // namespace ckpt::device
