// RunTask: runs one coroutine to its end on a context of its own, for tests.
#pragma once

#include <boost/asio/io_context.hpp>
#include <exception>
#include <optional>

#include "base/assert.hpp"
#include "base/task.hpp"

namespace ckpt::test {

// Until `task` has ended; whatever else is on the context runs along.
template <class T>
Result<T> run_task(asio::io_context& context, Task<T> task) {
  std::optional<Result<T>> result;
  std::exception_ptr thrown;
  asio::co_spawn(context, std::move(task), [&](std::exception_ptr error, Result<T> value) {
    thrown = error;
    result.emplace(std::move(value));
  });
  context.restart();
  while (!result && context.run_one() > 0) {
  }
  if (thrown) std::rethrow_exception(thrown);
  CKPT_ASSERT(result.has_value());
  return std::move(*result);
}

// Starts `task`; its result comes while somebody runs the context. `result` must live until then.
template <class T>
void start_task(asio::io_context& context, Task<T> task, std::optional<Result<T>>& result) {
  asio::co_spawn(context, std::move(task), [&result](std::exception_ptr error, Result<T> value) {
    if (error) std::rethrow_exception(error);
    result.emplace(std::move(value));
  });
}

}  // namespace ckpt::test
