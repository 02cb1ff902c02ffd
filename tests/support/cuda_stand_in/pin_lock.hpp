// PinLock: the driver's lock, which a registration of memory holds for as long as it takes.
//
// On an H200, launches of another thread wait for one registration and go before the next. So the
// calls that came during one pass before another begins.
//
// Threads: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace ckpt::test {

class PinLock {
 public:
  // `driver`: taken by every call.
  explicit PinLock(std::mutex& driver) : driver_(driver) {}

  struct Entry {
    std::unique_lock<std::mutex> lock;
    std::uint64_t bytes_waited = 0;  // Of registrations.
  };
  // Every call begins with it.
  Entry enter() {
    std::unique_lock own(mutex_);
    const bool is_behind = is_under_way_;
    const std::uint64_t before = bytes_ended_;
    waiting_ += is_behind ? 1 : 0;
    own.unlock();
    Entry entry{std::unique_lock(driver_)};
    if (!is_behind) return entry;
    own.lock();
    entry.bytes_waited = bytes_ended_ - before;
    --waiting_;
    passed_.notify_all();
    return entry;
  }
  // Before a registration enters.
  void let_others_pass() {
    std::unique_lock own(mutex_);
    passed_.wait(own, [&] { return waiting_ == 0; });
  }
  // In a registration, with the driver's lock.
  void block(std::uint64_t bytes, std::chrono::milliseconds time) {
    if (time.count() == 0) return;
    set_under_way(true, 0);
    const auto until = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    set_under_way(false, bytes);
  }

 private:
  void set_under_way(bool is_under_way, std::uint64_t bytes_ended) {
    const std::lock_guard own(mutex_);
    is_under_way_ = is_under_way;
    bytes_ended_ += bytes_ended;
  }

  std::mutex& driver_;
  std::mutex mutex_;
  std::condition_variable passed_;
  std::uint64_t waiting_ = 0;
  std::uint64_t bytes_ended_ = 0;
  bool is_under_way_ = false;
};

}  // namespace ckpt::test
