// Monitor: a value that two threads share, read under its lock and awaited with a deadline.
//
// It is for threads without an executor, such as the training thread. The functions given to it run
// under the lock: they must be short, and must not call out. Threads: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace ckpt {

template <class T>
class Monitor {
 public:
  template <class Look>
  auto read(Look look) const {
    const std::lock_guard lock(mutex_);
    return look(value_);
  }

  // Changes the value, then wakes the waiters.
  template <class Change>
  auto change(Change change) {
    const Waking waking{changed_};  // Notifies after the lock is released.
    const std::lock_guard lock(mutex_);
    return change(value_);
  }

  // Waits until `holds` returns true. Returns false if the deadline passed first.
  template <class Holds>
  bool wait_until(std::chrono::steady_clock::time_point deadline, Holds holds) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [&] { return holds(value_); });
  }

 private:
  struct Waking {
    std::condition_variable& changed;
    ~Waking() { changed.notify_all(); }
  };

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  T value_;
};

}  // namespace ckpt
