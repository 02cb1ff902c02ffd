// FakeClock: a Clock whose time passes only when the test says so.
//
// It drives one io_context by hand: nothing waits for the real time, and what is due at one instant
// runs in the order of deadlines, then of registration.
//
// Threads: one. Lifetime: the clock, its timers and the context may be destroyed in any order.
#pragma once

#include <boost/asio/io_context.hpp>
#include <optional>

#include "base/clock.hpp"

namespace ckpt::test {

class FakeClock : public Clock {
 public:
  // Starts an hour in, so that "an hour ago" exists.
  explicit FakeClock(asio::io_context& context);
  ~FakeClock() override;

  Time now() const override;
  std::chrono::system_clock::time_point wall_time() const override;
  std::unique_ptr<Timer> call_at(Time deadline, std::function<void()> expired) override;
  void close() override;

  // Runs what is ready without letting time pass.
  void poll();
  // Polls, then stops at each deadline on the way, fires it and polls again.
  void advance(Duration duration);
  // As for a process that was stopped for so long: all that is due by then is due at once.
  void jump(Duration duration);
  // Jumps to the next deadline, if there is one, and fires what is due then.
  bool advance_to_next();
  std::size_t pending() const;
  std::optional<Time> next_deadline() const;

 private:
  struct State;
  void fire_due();

  asio::io_context& context_;
  std::shared_ptr<State> state_;
};

}  // namespace ckpt::test
