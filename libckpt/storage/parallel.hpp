// Parallel: runs the same work for many indexes, a bounded number at a time.
//
// Threads: the caller's executor. Memory: `depth` frames. The first error keeps further work from
//          starting. Work already started is always awaited, so that its bytes may be freed
//          afterwards.
#pragma once

#include <cstddef>
#include <functional>

#include "base/task.hpp"

namespace ckpt::storage {

// Calls work(0) ... work(count - 1), started in this order. Errors: the first one of them.
Task<void> for_each_parallel(std::size_t count, std::size_t depth,
                             std::function<Task<void>(std::size_t)> work);

}  // namespace ckpt::storage
