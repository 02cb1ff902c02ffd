// Signal: lets coroutines of one thread wait until something has changed, with a deadline.
//
// It carries no value: the waiter looks at the state again. A notification without a waiter is
// lost, so look first, then wait, with no co_await in between. Threads: one. Lifetime: destroying
// it, or close(), ends every wait with `cancelled`.
#pragma once

#include <memory>

#include "base/clock.hpp"

namespace ckpt {

class Signal {
 public:
  explicit Signal(Clock& clock);
  ~Signal();
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  // Wakes all that wait now, in the order they came; they run later, from the executor.
  void notify_all();
  void close();

  // True: notified. False: the deadline passed. Errors: cancelled (closed).
  Task<bool> wait_until(Time deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ckpt
