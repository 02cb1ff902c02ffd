// CopyThreads: a few threads that share numbered pieces of work with the thread that waits for
// them.
//
// One atomic counter hands out the indexes, so that a slow thread holds nobody up. The waiting
// thread takes part instead of sleeping. Starting a Work allocates nothing.
//
// Threads:   start, help, wait_idle and retire from one thread at a time, per Work.
// Lifetime:  a Work is retired before it is destroyed, and before its CopyThreads are.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <ckpt/result.hpp>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace ckpt::device {

// How long a fence waits for a run on these threads. A copy within memory takes milliseconds. If it
// takes this long, the machine is swapping or stopped, and the call fails instead of blocking the
// trainer.
inline constexpr std::chrono::seconds host_fence_deadline{60};

class CopyThreads {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  static constexpr std::uint32_t threads_max = 64;
  static constexpr std::size_t works_max = 8;  // Beyond it, start() does the work itself.

  class Work {
   public:
    explicit Work(std::size_t count) : count_(count) {}
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   protected:
    virtual ~Work();
    virtual void carry_out(std::size_t index) = 0;  // Once for each index below count, in parallel.
    virtual void ended() = 0;  // Once, after all of them, on the thread that finished last.

   private:
    friend class CopyThreads;

    // Constant, so that a late thread may still compare with it.
    const std::size_t count_;
    std::atomic<std::size_t> next_{0};
    std::atomic<std::size_t> done_{0};
    std::atomic<bool> is_copied_{true};
    std::atomic<bool> is_idle_{true};
    std::uint32_t attached_ = 0;  // Threads that may touch it; under the mutex of CopyThreads.
  };

  explicit CopyThreads(std::uint32_t count);
  ~CopyThreads();
  CopyThreads(const CopyThreads&) = delete;
  CopyThreads& operator=(const CopyThreads&) = delete;

  std::uint32_t count() const { return static_cast<std::uint32_t>(threads_.size()); }

  // Returns at once; the work must be idle.
  void start(Work& work);
  // Takes part until every index is carried out. Errors: unavailable (others are not done in time).
  Status help(Work& work, Deadline deadline);
  // Waits until ended() has returned. Errors: unavailable.
  Status wait_idle(Work& work, Deadline deadline);
  // Waits until no thread can touch `work` any more.
  void retire(Work& work);

 private:
  void run();
  bool carry_out_next(Work& work);  // False when none is left to claim.
  void end(Work& work);
  void wake_waiters(std::atomic<bool>& claim);
  Work* claimable();              // Under the mutex; forgets works without unclaimed indexes.
  void forget(const Work& work);  // Under the mutex.

  std::mutex mutex_;
  std::condition_variable work_came_;
  std::condition_variable work_went_;
  std::array<Work*, works_max> works_{};
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ckpt::device
