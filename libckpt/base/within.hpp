// within: waits for a task until a deadline; the task itself continues in the background.
//
// For work that cannot be cancelled, above all a write to a storage that hangs. A result that
// arrives after the deadline is dropped.
//
// Threads: the executor's. Lifetime: `keep_alive` lives until the task has ended.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/signal.hpp"
#include "base/task.hpp"

namespace ckpt {

namespace detail {

template <class T>
struct Awaited {
  explicit Awaited(Clock& clock) : ended(clock) {}
  Signal ended;
  std::optional<Result<T>> result;
};

template <class T>
asio::awaitable<void> run_into(Task<T> task, std::shared_ptr<Awaited<T>> awaited,
                               std::shared_ptr<void> keep_alive) {
  auto result = co_await std::move(task);
  awaited->result.emplace(std::move(result));
  awaited->ended.notify_all();
  keep_alive.reset();
}

}  // namespace detail

// Errors: those of the task; unavailable (the deadline; `what` says what was attempted).
template <class T>
Task<T> within(asio::any_io_executor executor, Clock& clock, Time deadline, std::string what,
               Task<T> task, std::shared_ptr<void> keep_alive) {
  const auto awaited = std::make_shared<detail::Awaited<T>>(clock);
  asio::co_spawn(executor, detail::run_into<T>(std::move(task), awaited, std::move(keep_alive)),
                 asio::detached);
  while (!awaited->result) {
    auto woken = co_await awaited->ended.wait_until(deadline);
    if (!woken) co_return fail(std::move(woken).error());
    if (!*woken && !awaited->result)
      co_return fail(Errc::unavailable, std::move(what) + ": no answer in time");
  }
  co_return std::move(*awaited->result);
}

}  // namespace ckpt
