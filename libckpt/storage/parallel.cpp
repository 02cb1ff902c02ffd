#include "storage/parallel.hpp"

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <memory>
#include <optional>

#include "base/assert.hpp"
#include "base/parked.hpp"
#include "base/spawn.hpp"

namespace ckpt::storage {

namespace {

struct Shared {
  std::size_t count = 0;
  std::size_t next = 0;
  std::size_t running = 0;
  std::optional<Error> failure;
  std::function<Task<void>(std::size_t)> work;
  std::weak_ptr<Parked> waiter;
};

DetachedTask run_worker(std::shared_ptr<Shared> shared) {
  while (shared->next < shared->count && !shared->failure) {
    const std::size_t index = shared->next++;
    Status done = co_await shared->work(index);
    if (!done && !shared->failure) shared->failure = std::move(done).error();
  }
  CKPT_ASSERT(shared->running > 0);
  CKPT_ASSERT(shared->next <= shared->count);
  --shared->running;
  if (const auto waiter = shared->waiter.lock(); waiter && shared->running == 0) {
    waiter->wake(Parked::Reason::notified);
  }
}

}  // namespace

Task<void> for_each_parallel(std::size_t count, std::size_t depth,
                             std::function<Task<void>(std::size_t)> work) {
  CKPT_ASSERT(depth > 0);
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  const auto waiter = std::make_shared<Parked>(executor);
  const auto shared = std::make_shared<Shared>();
  shared->count = count;
  shared->running = std::min(count, depth);
  shared->work = std::move(work);
  shared->waiter = waiter;
  const std::size_t workers = shared->running;
  for (std::size_t index = 0; index < workers; ++index) {
    run_detached(executor, run_worker(shared));
  }
  if (shared->running > 0) co_await waiter->wait();
  // Cancelled by the executor's end: the frames of the workers are going, too.
  if (shared->running > 0) co_return fail(Errc::cancelled, "the executor stopped");
  if (shared->failure) co_return fail(*shared->failure);
  co_return Status();
}

}  // namespace ckpt::storage
