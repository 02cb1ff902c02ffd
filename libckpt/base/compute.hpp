// Compute: the seam to threads for work that keeps a processor busy, such as checksums over bulk
// data, and parsing and building long texts. The control thread stays free.
//
// Threads:  call from one executor; every Task resumes there. The work runs elsewhere.
// Lifetime: objects that the work refers to must live until its Task ends, or until the Compute is
//           gone: destroy it before the executor's context.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "base/checksum.hpp"
#include "base/task.hpp"

namespace ckpt {

class Compute {
 public:
  virtual ~Compute() = default;
  // Runs `work` once and returns after it. Errors: exhausted (the queue is full).
  virtual Task<void> run(std::function<void()> work) = 0;
};

// Without a Compute (null, in tools and tests), runs the work in place, then lets other coroutines
// run.
Task<void> run_on(Compute* where, std::function<void()> work);
// Returns the result of `work`. Errors: those of `work`, and those of run().
template <class T>
Task<T> compute_on(Compute* where, std::function<Result<T>()> work) {
  std::optional<Result<T>> result;
  std::function<void()> fill = [&result, &work] { result.emplace(work()); };
  CKPT_CO_CHECK(co_await run_on(where, std::move(fill)));
  co_return std::move(*result);
}
// As crc32(). A piece should be long enough to be worth a change of threads: a Chunk.
Task<Crc32> crc32_on(Compute* where, std::span<const std::byte> bytes, Crc32 before = 0);

}  // namespace ckpt
