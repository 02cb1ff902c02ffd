// Pending: a coroutine that a test started, and ways to let time pass until it has ended.
//
// Threads: one.
#pragma once

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <exception>
#include <optional>

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

template <class T>
Pending<T> start(asio::io_context& context, Task<T> task) {
  Pending<T> pending;
  asio::co_spawn(context, std::move(task),
                 [outcome = pending.outcome_](std::exception_ptr thrown, Result<T> result) {
                   if (thrown) std::rethrow_exception(thrown);
                   outcome->emplace(std::move(result));
                 });
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
