// Clock: the seam through which everything reads the time and waits for it.
//
// Time is monotonic and starts anywhere. Wall time is for people. It decides only about the age of
// files: whether one was written so recently that its own times prove nothing
// (storage/catalog_cache.hpp), and whether a work directory was left (storage/left_attempts.hpp).
// Threads: timers fire on the executor that was given to the clock. Use a clock from that thread
//          alone.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "base/task.hpp"

namespace ckpt {

struct MonotonicTag {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<MonotonicTag, duration>;
  static constexpr bool is_steady = true;
};
using Time = MonotonicTag::time_point;
using Duration = std::chrono::nanoseconds;
inline constexpr Time no_deadline = Time::max();

// Destroying a Timer cancels it: its function is then never called.
class Timer {
 public:
  virtual ~Timer() = default;
};

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const = 0;
  virtual std::chrono::system_clock::time_point wall_time() const = 0;
  // Calls `expired` once, on the clock's executor, not from inside this call.
  virtual std::unique_ptr<Timer> call_at(Time deadline, std::function<void()> expired) = 0;
  // Ends every wait: pending functions are dropped, and later ones too. now() still works, for
  // coroutines that have not ended yet.
  virtual void close() = 0;

  Time after(Duration duration) const { return now() + duration; }
};

// The machine's clock, with timers on `executor`.
std::unique_ptr<Clock> make_system_clock(asio::any_io_executor executor);

// Suspends until `deadline`. Fails only with cancelled, when the clock is closed or destroyed
// first.
Task<void> sleep_until(Clock& clock, Time deadline);

}  // namespace ckpt
