// Throttle: a budget of bytes per second, spent in advance by whoever is about to move them.
//
// A token bucket of one second: what was not used is kept for at most that long. Those who wait are
// served in the order in which they came.
// Threads: one.
#pragma once

#include <cstdint>

#include "base/clock.hpp"

namespace ckpt::flush {

class Throttle {
 public:
  // `bytes_per_second` 0: unlimited.
  Throttle(Clock& clock, std::uint64_t bytes_per_second)
      : clock_(clock), bytes_per_second_(bytes_per_second) {}

  // Returns when the bytes may be moved. Errors: cancelled (the clock was destroyed).
  Task<void> take(std::uint64_t bytes);
  void set_rate(std::uint64_t bytes_per_second) { bytes_per_second_ = bytes_per_second; }

 private:
  Clock& clock_;
  std::uint64_t bytes_per_second_;
  Time paid_until_{};  // When all that was taken so far is paid for.
};

}  // namespace ckpt::flush
