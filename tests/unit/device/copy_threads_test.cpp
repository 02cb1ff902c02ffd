// Goal:   each index is carried out exactly once, whoever takes it, and nobody waits for ever.
// Method: works that count their calls, restarted thousands of times; one that holds the copy
//         threads back until the waiter's deadline has passed.
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <semaphore>
#include <vector>

#include "device/copy_threads.hpp"

namespace ckpt::device {

namespace {

CopyThreads::Deadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(30);
}
CopyThreads::Deadline already_over() {
  return std::chrono::steady_clock::now();
}

class CountingWork final : public CopyThreads::Work {
 public:
  CountingWork(CopyThreads& threads, std::size_t count)
      : Work(count), calls(count), threads_(threads) {}
  ~CountingWork() override { threads_.retire(*this); }

  std::vector<std::atomic<int>> calls;
  std::atomic<int> endings{0};

 private:
  void carry_out(std::size_t index) override { ++calls[index]; }
  void ended() override { ++endings; }
  CopyThreads& threads_;
};

// Holds whoever carries out index 0 until it is let go.
class HeldWork final : public CopyThreads::Work {
 public:
  explicit HeldWork(CopyThreads& threads) : Work(1), threads_(threads) {}
  ~HeldWork() override { threads_.retire(*this); }
  std::binary_semaphore is_claimed{0};
  std::binary_semaphore may_go_on{0};

 private:
  void carry_out(std::size_t) override {
    is_claimed.release();
    may_go_on.acquire();
  }
  void ended() override {}
  CopyThreads& threads_;
};

}  // namespace

TEST_CASE("copy threads: each index is carried out once", "[unit][device]") {
  CopyThreads threads(GENERATE(1u, 3u));
  for (const std::size_t count : {0u, 1u, 2u, 1000u}) {
    CountingWork work(threads, count);
    threads.start(work);
    REQUIRE(threads.help(work, soon()));
    REQUIRE(threads.wait_idle(work, soon()));
    for (const auto& calls : work.calls) REQUIRE(calls == 1);
    REQUIRE(work.endings == 1);
  }
}

TEST_CASE("copy threads: work that is restarted at once is done as often", "[unit][device]") {
  CopyThreads threads(2);
  CountingWork work(threads, 3);
  constexpr int rounds = 5000;
  for (int round = 0; round < rounds; ++round) {
    threads.start(work);
    if (round % 2 == 0) REQUIRE(threads.help(work, soon()));
    REQUIRE(threads.wait_idle(work, soon()));
  }
  for (const auto& calls : work.calls) REQUIRE(calls == rounds);
  REQUIRE(work.endings == rounds);
}

TEST_CASE("copy threads: a waiter has its deadline", "[unit][device]") {
  CopyThreads threads(1);
  HeldWork work(threads);
  threads.start(work);
  work.is_claimed.acquire();
  const Status helped = threads.help(work, already_over());
  REQUIRE_FALSE(helped);
  REQUIRE(helped.error().code() == Errc::unavailable);
  REQUIRE_FALSE(threads.wait_idle(work, already_over()));
  work.may_go_on.release();
  REQUIRE(threads.wait_idle(work, soon()));
}

TEST_CASE("copy threads: a waiting thread takes part", "[unit][device]") {
  CopyThreads threads(1);
  HeldWork held(threads);
  threads.start(held);
  held.is_claimed.acquire();  // The only thread is taken.
  CountingWork work(threads, 100);
  threads.start(work);
  REQUIRE(threads.help(work, already_over()));
  for (const auto& calls : work.calls) REQUIRE(calls == 1);
  held.may_go_on.release();
  REQUIRE(threads.wait_idle(held, soon()));
}

TEST_CASE("copy threads: more works than places are done all the same", "[unit][device]") {
  CopyThreads threads(1);
  HeldWork held(threads);
  threads.start(held);
  held.is_claimed.acquire();
  std::vector<std::unique_ptr<CountingWork>> works;
  for (std::size_t i = 0; i < CopyThreads::works_max + 3; ++i) {
    works.push_back(std::make_unique<CountingWork>(threads, 2));
    threads.start(*works.back());
  }
  held.may_go_on.release();
  for (const auto& work : works) {
    REQUIRE(threads.wait_idle(*work, soon()));
    REQUIRE(work->endings == 1);
  }
}

}  // namespace ckpt::device
