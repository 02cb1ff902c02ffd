// RunTask: runs one coroutine to its end on a context of its own, for tests.
#pragma once

#include <boost/asio/io_context.hpp>
#include <optional>

#include "base/assert.hpp"
#include "base/spawn.hpp"
#include "base/task.hpp"

namespace ckpt::test {

// Until `task` has ended; whatever else is on the context runs along.
template <class T>
Result<T> run_task(asio::io_context& context, Task<T> task) {
  std::optional<Result<T>> result;
  spawn_into(context.get_executor(), std::move(task), result);
  context.restart();
  while (!result && context.run_one() > 0) {
  }
  CKPT_ASSERT(result.has_value());
  return std::move(*result);
}

}  // namespace ckpt::test
