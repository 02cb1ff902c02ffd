#include "os/readiness.hpp"

#include <boost/asio/as_tuple.hpp>

namespace ckpt::os {

Result<std::shared_ptr<Readiness>> Readiness::open(const asio::any_io_executor& executor,
                                                   Clock& clock, Fd fd) {
  try {
    // Asio owns the descriptor only if it did not throw.
    auto readiness = std::make_shared<Readiness>(executor, clock, fd.number());
    (void)fd.release();
    return readiness;
  } catch (const boost::system::system_error& error) {
    return fail(Errc::io, "watch a descriptor",
                std::error_code(error.code().value(), std::generic_category()));
  }
}

Readiness::Readiness(const asio::any_io_executor& executor, Clock& clock, int number)
    : clock_(clock), descriptor_(executor, number) {}

Task<void> Readiness::wait(std::shared_ptr<Readiness> self, Direction direction, Time deadline) {
  const auto has_expired = std::make_shared<bool>(false);
  std::unique_ptr<Timer> alarm;
  if (deadline != no_deadline && self->is_open()) {
    std::function<void()> expired = [has_expired, watched = std::weak_ptr<Readiness>(self)] {
      *has_expired = true;
      boost::system::error_code ignored;
      if (const auto readiness = watched.lock()) readiness->descriptor_.cancel(ignored);
    };
    alarm = self->clock_.call_at(deadline, std::move(expired));
  }
  while (self->is_open()) {
    const auto token = asio::as_tuple(asio::use_awaitable);
    const auto [error] = co_await self->descriptor_.async_wait(direction, token);
    if (!self->is_open()) break;
    if (!error) co_return Status();
    if (*has_expired) {
      co_return fail(Errc::unavailable, "the deadline passed",
                     std::make_error_code(std::errc::timed_out));
    }
    // The other direction's deadline cancelled both waits: wait again.
    if (error != asio::error::operation_aborted) {
      co_return fail(Errc::io, "wait for a descriptor",
                     std::error_code(error.value(), std::generic_category()));
    }
  }
  co_return fail(Errc::cancelled, "closed by us");
}

void Readiness::close() {
  boost::system::error_code ignored;
  descriptor_.close(ignored);
}

}  // namespace ckpt::os
