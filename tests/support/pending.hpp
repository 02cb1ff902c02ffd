// Pending: a coroutine that a test started, and ways to let time pass until it has ended.
//
// Threads: one.
#pragma once

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <optional>

#include "base/spawn.hpp"
#include "base/task.hpp"
#include "support/fake_clock.hpp"

namespace ckpt::test {

template <class T>
class Pending {
 public:
  bool is_done() const { return outcome_->has_value(); }
  Result<T>& result() {
    REQUIRE(is_done());
    return **outcome_;
  }

 private:
  template <class U>
  friend Pending<U> start(asio::io_context& context, Task<U> task);
  std::shared_ptr<std::optional<Result<T>>> outcome_ = std::make_shared<std::optional<Result<T>>>();
};

// Shares the outcome, so that a test may drop its Pending first.
template <class T>
DetachedTask deliver(Task<T> task, std::shared_ptr<std::optional<Result<T>>> outcome) {
  auto result = co_await std::move(task);
  outcome->emplace(std::move(result));
}

template <class T>
Pending<T> start(asio::io_context& context, Task<T> task) {
  Pending<T> pending;
  spawn(context.get_executor(), deliver(std::move(task), pending.outcome_));
  return pending;
}

// Lets virtual time pass until it is done. Nothing left to happen is a failure of the test.
template <class T>
Result<T> finish(FakeClock& clock, Pending<T> pending) {
  clock.poll();
  while (!pending.is_done()) REQUIRE(clock.advance_to_next());
  return std::move(pending.result());
}

}  // namespace ckpt::test
