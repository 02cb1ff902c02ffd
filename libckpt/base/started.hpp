// Started: a task that runs beside the coroutine that started it, and that is asked for its result
// later.
//
// Dropping a Started does not end the task: its result is dropped then.
//
// Threads: the executor's. Lifetime: `keep_alive` lives until the task has ended.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "base/assert.hpp"
#include "base/signal.hpp"
#include "base/spawn.hpp"
#include "base/task.hpp"

namespace ckpt {

template <class T>
class Started {
 public:
  Started(const asio::any_io_executor& executor, Clock& clock, Task<T> task,
          std::shared_ptr<void> keep_alive = nullptr)
      : state_(std::make_shared<State>(clock)) {
    run_detached(executor, run(std::move(task), state_, std::move(keep_alive)));
  }

  // Returns true once the task has ended, false at the deadline. Errors: cancelled.
  Task<bool> ended_by(Time deadline) { return wait(state_, deadline); }
  // Call one of these, once. Errors: those of the task.
  Result<T> take() { return take_from(*state_); }
  Task<T> result() { return wait_and_take(state_); }

 private:
  struct State {
    explicit State(Clock& clock) : ended(clock) {}
    Signal ended;
    std::optional<Result<T>> result;
  };

  static DetachedTask run(Task<T> task, std::shared_ptr<State> state,
                          std::shared_ptr<void> keep_alive) {
    auto result = co_await std::move(task);
    state->result.emplace(std::move(result));
    state->ended.notify_all();
    keep_alive.reset();
  }
  static Task<bool> wait(std::shared_ptr<State> state, Time deadline) {
    while (!state->result) {
      CKPT_CO_TRY(const bool is_notified, co_await state->ended.wait_until(deadline));
      if (!is_notified) break;
    }
    co_return state->result.has_value();
  }
  static Task<T> wait_and_take(std::shared_ptr<State> state) {
    CKPT_CO_TRY(const bool has_ended, co_await wait(state, no_deadline));
    CKPT_ASSERT(has_ended);
    co_return take_from(*state);
  }
  static Result<T> take_from(State& state) {
    CKPT_ASSERT(state.result.has_value());
    return std::move(*state.result);
  }

  std::shared_ptr<State> state_;
};

}  // namespace ckpt
