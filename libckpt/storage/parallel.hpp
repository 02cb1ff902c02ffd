// Parallel: the same piece of work for many numbers, a bounded few at a time.
//
// Threads: the caller's executor. Memory: `depth` frames. The first error stops what has not begun;
// what has begun is always waited for, so that the bytes it works on may be freed afterwards.
#pragma once

#include <cstddef>
#include <functional>

#include "base/task.hpp"

namespace ckpt::storage {

// Calls work(0) ... work(count - 1), begun in this order. Errors: the first one of them.
Task<void> for_each_parallel(std::size_t count, std::size_t depth,
                             std::function<Task<void>(std::size_t)> work);

}  // namespace ckpt::storage
