#include "base/clock.hpp"

#include <boost/asio/steady_timer.hpp>
#include <unordered_set>

#include "base/parked.hpp"

namespace ckpt {

namespace {

class SystemTimer;

// Shared by the clock and its timers, either of which may be destroyed first.
struct PendingTimers {
  std::unordered_set<SystemTimer*> timers;
};

// The handler that waits in the io_context owns it, so that destroying a context destroys its
// timers. The caller's Timer and the clock only point to it.
class SystemTimer : public std::enable_shared_from_this<SystemTimer> {
 public:
  SystemTimer(const asio::any_io_executor& executor, std::shared_ptr<PendingTimers> pending,
              std::function<void()> expired)
      : timer_(executor), pending_(std::move(pending)), expired_(std::move(expired)) {
    pending_->timers.insert(this);
  }
  ~SystemTimer() { pending_->timers.erase(this); }

  void start(std::chrono::steady_clock::time_point deadline) {
    timer_.expires_at(deadline);
    timer_.async_wait([self = shared_from_this()](boost::system::error_code) { self->fire(); });
  }
  // Drops the function at once: a completion that is already queued finds nothing to call.
  void cancel() {
    pending_->timers.erase(this);
    const std::function<void()> dropped = std::exchange(expired_, nullptr);
    timer_.cancel();
  }

 private:
  void fire() {
    pending_->timers.erase(this);
    const std::function<void()> expired = std::exchange(expired_, nullptr);
    if (expired) expired();
  }

  asio::steady_timer timer_;
  std::shared_ptr<PendingTimers> pending_;
  std::function<void()> expired_;
};

class SystemTimerHandle : public Timer {
 public:
  explicit SystemTimerHandle(const std::shared_ptr<SystemTimer>& timer) : timer_(timer) {}
  ~SystemTimerHandle() override {
    if (const auto timer = timer_.lock()) timer->cancel();
  }

 private:
  std::weak_ptr<SystemTimer> timer_;
};

class SystemClock : public Clock {
 public:
  explicit SystemClock(asio::any_io_executor executor) : executor_(std::move(executor)) {}
  ~SystemClock() override { cancel_all(); }

  Time now() const override { return Time(std::chrono::steady_clock::now().time_since_epoch()); }
  std::chrono::system_clock::time_point wall_time() const override {
    return std::chrono::system_clock::now();
  }
  std::unique_ptr<Timer> call_at(Time deadline, std::function<void()> expired) override {
    if (is_closed_) return std::make_unique<Timer>();
    const auto timer = std::make_shared<SystemTimer>(executor_, pending_, std::move(expired));
    timer->start(std::chrono::steady_clock::time_point(deadline.time_since_epoch()));
    return std::make_unique<SystemTimerHandle>(timer);
  }
  void close() override {
    is_closed_ = true;
    cancel_all();
  }

 private:
  void cancel_all() {
    while (!pending_->timers.empty()) {
      const auto timer = (*pending_->timers.begin())->shared_from_this();
      timer->cancel();
    }
  }

  asio::any_io_executor executor_;
  bool is_closed_ = false;
  std::shared_ptr<PendingTimers> pending_ = std::make_shared<PendingTimers>();
};

// Owned by the function that was given to the clock. If that is destroyed without a call, the clock
// was closed or destroyed.
class SleepGuard {
 public:
  explicit SleepGuard(const std::shared_ptr<Parked>& sleeper) : sleeper_(sleeper) {}
  SleepGuard(const SleepGuard&) = delete;
  SleepGuard& operator=(const SleepGuard&) = delete;
  ~SleepGuard() { wake(Parked::Reason::closed); }

  void wake(Parked::Reason reason) const {
    if (const auto sleeper = sleeper_.lock()) sleeper->wake(reason);
  }

 private:
  std::weak_ptr<Parked> sleeper_;
};

}  // namespace

std::unique_ptr<Clock> make_system_clock(asio::any_io_executor executor) {
  return std::make_unique<SystemClock>(std::move(executor));
}

Task<void> sleep_until(Clock& clock, Time deadline) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  const auto sleeper = std::make_shared<Parked>(executor);
  std::function<void()> expired = [guard = std::make_shared<SleepGuard>(sleeper)] {
    guard->wake(Parked::Reason::deadline);
  };
  const std::unique_ptr<Timer> timer = clock.call_at(deadline, std::move(expired));
  const Parked::Reason reason = co_await sleeper->wait();
  if (reason != Parked::Reason::deadline) {
    co_return fail(Errc::cancelled, "sleep: the clock was closed");
  }
  co_return Status();
}

}  // namespace ckpt
