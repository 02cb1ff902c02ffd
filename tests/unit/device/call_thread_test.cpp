// Goal:   a call that does not return costs its caller no more than the deadline, and what the call
//         holds lives until it does return.
// Method: calls that wait for a word of the test.
#include "device/call_thread.hpp"

#include <catch2/catch.hpp>
#include <future>
#include <thread>

namespace ckpt::test {

using device::CallThread;

namespace {

device::Deadline in_a_minute() {
  return std::chrono::steady_clock::now() + std::chrono::minutes(1);
}

}  // namespace

TEST_CASE("call thread: calls run one after the other, on one other thread", "[unit][device]") {
  const auto thread = CallThread::start("ckpt-test").value();
  std::thread::id first;
  std::thread::id second;
  REQUIRE(thread->run(
      [&]() -> Status {
        first = std::this_thread::get_id();
        return {};
      },
      in_a_minute()));
  const Status failed = thread->run(
      [&]() -> Status {
        second = std::this_thread::get_id();
        return fail(Errc::corruption, "as it says");
      },
      in_a_minute());
  REQUIRE_FALSE(failed);
  CHECK(failed.error().text() == "as it says");
  CHECK(first == second);
  CHECK(first != std::this_thread::get_id());
  CHECK_FALSE(thread->is_lost());
}

TEST_CASE("call thread: what a call holds is gone when it has returned", "[unit][device]") {
  const auto thread = CallThread::start("ckpt-test").value();
  auto held = std::make_shared<int>(1);
  REQUIRE(thread->run([held]() -> Status { return {}; }, in_a_minute()));
  CHECK(held.use_count() == 1);
}

TEST_CASE("call thread: a call that does not return is given up, and all later ones are refused",
          "[unit][device]") {
  std::promise<void> word;
  std::promise<void> end;
  {
    const auto thread = CallThread::start("ckpt-test").value();
    auto held = std::make_shared<std::shared_future<void>>(word.get_future());
    const Status late = thread->run(
        [held, &end]() -> Status {
          held->wait();
          end.set_value();
          return {};
        },
        std::chrono::steady_clock::now());
    REQUIRE_FALSE(late);
    CHECK(late.error().code() == Errc::unavailable);
    CHECK(thread->is_lost());
    CHECK(held.use_count() == 2);
    bool has_run = false;
    const Status refused = thread->run(
        [&]() -> Status {
          has_run = true;
          return {};
        },
        in_a_minute());
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == Errc::unavailable);
    CHECK_FALSE(has_run);
  }
  word.set_value();
  end.get_future().wait();
}

}  // namespace ckpt::test
