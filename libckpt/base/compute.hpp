// Compute: the seam to threads for work that keeps a processor busy: checksums over bulk data, and
// the parsing and building of long texts. The thread that decides stays free for others.
//
// Threads:  call from one executor; every Task resumes there. The work runs elsewhere.
// Lifetime: what the work refers to must live until its Task ends, or until the Compute is gone:
//           destroy it before the executor's context.
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
  // Runs `work` once, and ends after it. Errors: exhausted (too much waits already).
  virtual Task<void> run(std::function<void()> work) = 0;
};

// For callers that may have no threads for it, as tools and tests: with null, the work is done in
// place, and others get their turn after it.
Task<void> run_on(Compute* where, std::function<void()> work);
// The result of `work`, which may also fail by itself.
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
