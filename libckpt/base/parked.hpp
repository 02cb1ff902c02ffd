// Parked: one suspended coroutine that somebody else wakes, once, with a reason.
//
// The io_context owns the suspended frame: destroying the context destroys the frame, whoever still
// points to it. This makes a simulated kill safe.
//
// Threads:  the executor's. Lifetime: hold it by shared_ptr in the frame that waits, and by
// weak_ptr everywhere else.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/task.hpp"

namespace ckpt {

class Parked {
 public:
  enum class Reason : unsigned char { none, notified, deadline, closed };

  explicit Parked(const asio::any_io_executor& executor);

  // The first reason counts; the waiter resumes later, from its executor, in the order of wakes.
  void wake(Reason reason);
  // Call it once. Returns nothing when Asio's own cancellation ended the wait.
  asio::awaitable<Reason> wait();

 private:
  asio::steady_timer timer_;  // Never expires: wake() cancels it.
  Reason reason_ = Reason::none;
};

}  // namespace ckpt
