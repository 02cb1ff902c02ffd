// within: waits for a task until a deadline; the task itself continues in the background.
//
// For work that cannot be cancelled, above all a write to a storage that hangs. A result that
// arrives after the deadline is dropped.
//
// Threads: the executor's. Lifetime: `keep_alive` lives until the task has ended.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/started.hpp"

namespace ckpt {

// Errors: those of the task; unavailable (the deadline; `what` says what was attempted).
template <class T>
Task<T> within(asio::any_io_executor executor, Clock& clock, Time deadline, std::string what,
               Task<T> task, std::shared_ptr<void> keep_alive) {
  Started<T> started(executor, clock, std::move(task), std::move(keep_alive));
  CKPT_CO_TRY(const bool has_ended, co_await started.ended_by(deadline));
  if (!has_ended) co_return fail(Errc::unavailable, std::move(what) + ": no answer in time");
  co_return started.take();
}

}  // namespace ckpt
