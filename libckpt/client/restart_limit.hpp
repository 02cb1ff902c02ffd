// RestartLimit: limits the starts of a daemon that keeps dying: five times in ten minutes, then
// once a minute, so that a broken one costs the training nothing.
#pragma once

#include <deque>

#include "base/clock.hpp"

namespace ckpt::client {

class RestartLimit {
 public:
  static constexpr std::size_t starts_in_window_max = 5;
  static constexpr Duration window = std::chrono::minutes(10);
  static constexpr Duration interval_beyond = std::chrono::minutes(1);

  // The earliest time of the next start: `now`, or later.
  Time next(Time now) const;
  std::size_t recent(Time now) const;  // Starts within the window.
  void started(Time now);

 private:
  std::deque<Time> starts_;  // In the last window, oldest first.
};

}  // namespace ckpt::client
