#include "base/parked.hpp"

#include <boost/asio/as_tuple.hpp>

namespace ckpt {

Parked::Parked(const asio::any_io_executor& executor)
    : timer_(executor, asio::steady_timer::time_point::max()) {}

void Parked::wake(Reason reason) {
  if (reason_ != Reason::none) return;
  reason_ = reason;
  timer_.cancel();
}

asio::awaitable<Parked::Reason> Parked::wait() {
  if (reason_ == Reason::none) {
    const auto token = asio::as_tuple(asio::use_awaitable);
    co_await timer_.async_wait(token);
  }
  co_return reason_;
}

}  // namespace ckpt
