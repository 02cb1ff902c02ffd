#include "base/compute.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>

namespace ckpt {

Task<void> run_on(Compute* where, std::function<void()> work) {
  if (where != nullptr) {
    auto done = co_await where->run(std::move(work));
    co_return done;
  }
  work();
  // Let others run before the caller goes on, as a Compute does. Else a long row of Chunks would
  // keep this thread from deadlines and messages until its end.
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  co_await asio::post(executor, asio::use_awaitable);
  co_return Status();
}

Task<Crc32> crc32_on(Compute* where, std::span<const std::byte> bytes, Crc32 before) {
  Crc32 crc = 0;
  std::function<void()> work = [&crc, bytes, before] { crc = crc32(bytes, before); };
  CKPT_CO_CHECK(co_await run_on(where, std::move(work)));
  co_return crc;
}

}  // namespace ckpt
