// Spawn: starts coroutines that nobody awaits.
//
// Only its source names Asio's co_spawn: a file that instantiates that for ten types of coroutines
// takes a compiler up to a third longer.
#pragma once

#include <optional>
#include <utility>

#include "base/task.hpp"

namespace ckpt {

// An exception ends the task, and nothing else.
void run_detached(const asio::any_io_executor& executor, DetachedTask task);

// An exception leaves the run() of the executor's context.
void spawn(const asio::any_io_executor& executor, DetachedTask task);

template <class T>
DetachedTask deliver(Task<T> task, std::optional<Result<T>>* result) {
  auto outcome = co_await std::move(task);
  result->emplace(std::move(outcome));
}

// As spawn(). `result` comes while somebody runs the context, and must live until then.
template <class T>
void spawn_into(const asio::any_io_executor& executor, Task<T> task,
                std::optional<Result<T>>& result) {
  spawn(executor, deliver(std::move(task), &result));
}

}  // namespace ckpt
