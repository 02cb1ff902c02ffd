#include "base/spawn.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <exception>

namespace ckpt {

void run_detached(const asio::any_io_executor& executor, DetachedTask task) {
  asio::co_spawn(executor, std::move(task), asio::detached);
}

void spawn(const asio::any_io_executor& executor, DetachedTask task) {
  asio::co_spawn(executor, std::move(task), [](std::exception_ptr thrown) {
    if (thrown) std::rethrow_exception(thrown);
  });
}

}  // namespace ckpt
