#include "base/signal.hpp"

#include <vector>

#include "base/parked.hpp"

namespace ckpt {

// Outlives the Signal while a woken wait has not run yet.
struct Signal::State {
  explicit State(Clock& the_clock) : clock(the_clock) {}

  void wake_all(Parked::Reason reason) {
    // Waking only posts, so nobody can join or leave meanwhile; the exchange is for clarity.
    const auto woken = std::exchange(waiters, {});
    for (const auto& waiter : woken) {
      if (const auto parked = waiter.lock()) parked->wake(reason);
    }
  }
  // Drops the waits that a deadline has ended, so that the list stays as short as the number of
  // live waits.
  void add(const std::shared_ptr<Parked>& parked) {
    std::erase_if(waiters, [](const std::weak_ptr<Parked>& waiter) { return waiter.expired(); });
    waiters.push_back(parked);
  }

  Clock& clock;
  std::vector<std::weak_ptr<Parked>> waiters;
  bool closed = false;
};

Signal::Signal(Clock& clock) : state_(std::make_shared<State>(clock)) {}
Signal::~Signal() {
  close();
}

void Signal::notify_all() {
  state_->wake_all(Parked::Reason::notified);
}

void Signal::close() {
  state_->closed = true;
  state_->wake_all(Parked::Reason::closed);
}

Task<bool> Signal::wait_until(Time deadline) {
  if (state_->closed) co_return fail(Errc::cancelled, "wait: the signal was closed");
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  const auto parked = std::make_shared<Parked>(executor);
  state_->add(parked);
  std::unique_ptr<Timer> alarm;
  if (deadline != no_deadline) {
    std::function<void()> expired = [waiter = std::weak_ptr<Parked>(parked)] {
      if (const auto sleeper = waiter.lock()) sleeper->wake(Parked::Reason::deadline);
    };
    alarm = state_->clock.call_at(deadline, std::move(expired));
  }
  // From here on `this` may be gone: only what the frame owns is touched.
  const Parked::Reason reason = co_await parked->wait();
  if (reason == Parked::Reason::notified) co_return true;
  if (reason == Parked::Reason::deadline) co_return false;
  co_return fail(Errc::cancelled, "wait: the signal was closed");
}

}  // namespace ckpt
