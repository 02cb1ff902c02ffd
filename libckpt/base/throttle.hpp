// Throttle: a limit in bytes per second on what several coroutines move.
//
// A caller continues once everything taken before it is paid for, in order of arrival. A pause
// earns no credit: there is no burst after it. A new rate applies at once, also to callers that
// already wait.
// Threads: one. Lifetime: destroying it ends every wait with `cancelled`.
#pragma once

#include <cstdint>

#include "base/signal.hpp"

namespace ckpt {

class Throttle {
 public:
  // `bytes_per_second` 0: no limit.
  explicit Throttle(Clock& clock, std::uint64_t bytes_per_second = 0)
      : clock_(clock), changed_(clock), bytes_per_second_(bytes_per_second) {}

  // Returns when the bytes may be moved. Errors: cancelled.
  Task<void> take(std::uint64_t bytes);
  void set_rate(std::uint64_t bytes_per_second);
  std::uint64_t rate() const { return bytes_per_second_; }
  // The sum over all take() calls.
  std::uint64_t bytes_taken() const { return bytes_taken_; }

 private:
  void pay();

  Clock& clock_;
  Signal changed_;
  std::uint64_t bytes_per_second_;
  std::uint64_t bytes_taken_ = 0;
  double bytes_unpaid_ = 0;  // The debt at `paid_at_`.
  Time paid_at_{};
};

}  // namespace ckpt
