#include "device/copy_threads.hpp"

#include <algorithm>
#include <system_error>

#include "base/assert.hpp"
#include "os/thread_settings.hpp"

namespace ckpt::device {

CopyThreads::Work::~Work() {
  CKPT_ASSERT(is_idle_.load());
  CKPT_ASSERT(attached_ == 0);
}

CopyThreads::CopyThreads(std::uint32_t count) {
  CKPT_ASSERT(count >= 1);
  CKPT_ASSERT(count <= threads_max);
  const os::SignalsBlocked blocked;
  threads_.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    try {
      threads_.emplace_back([this] { run(); });
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;
      return;  // A limit on threads: fewer do the work.
    }
  }
}

CopyThreads::~CopyThreads() {
  {
    const std::lock_guard lock(mutex_);
    for (const Work* work : works_) CKPT_ASSERT(work == nullptr);
    is_stopping_ = true;
  }
  work_came_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void CopyThreads::start(Work& work) {
  CKPT_ASSERT(work.is_idle_.load());
  work.is_idle_.store(false, std::memory_order_relaxed);
  work.is_copied_.store(false, std::memory_order_relaxed);
  work.done_.store(0, std::memory_order_relaxed);
  if (work.count_ == 0) {
    end(work);
    return;
  }
  // A thread that is late from the previous run may claim from here on: every field is written.
  work.next_.store(0, std::memory_order_release);
  bool is_queued = false;
  {
    const std::lock_guard lock(mutex_);
    forget(work);
    const auto place = std::find(works_.begin(), works_.end(), nullptr);
    is_queued = place != works_.end();
    if (is_queued) *place = &work;
  }
  if (!is_queued) {
    while (carry_out_next(work)) {
    }
  } else if (work.count_ == 1) {
    work_came_.notify_one();
  } else {
    work_came_.notify_all();
  }
}

bool CopyThreads::carry_out_next(Work& work) {
  const std::size_t index = work.next_.fetch_add(1, std::memory_order_acq_rel);
  if (index >= work.count_) return false;
  work.carry_out(index);
  if (work.done_.fetch_add(1, std::memory_order_acq_rel) + 1 == work.count_) end(work);
  return true;
}

void CopyThreads::end(Work& work) {
  wake_waiters(work.is_copied_);
  work.ended();
  wake_waiters(work.is_idle_);
}

void CopyThreads::wake_waiters(std::atomic<bool>& claim) {
  // Under the mutex, so that a waiter has either not looked yet or is already asleep.
  const std::lock_guard lock(mutex_);
  claim.store(true, std::memory_order_release);
  work_went_.notify_all();
}

Status CopyThreads::help(Work& work, Deadline deadline) {
  if (work.is_copied_.load(std::memory_order_acquire)) return {};
  while (carry_out_next(work)) {
  }
  if (work.is_copied_.load(std::memory_order_acquire)) return {};
  std::unique_lock lock(mutex_);
  const bool is_copied = work_went_.wait_until(
      lock, deadline, [&] { return work.is_copied_.load(std::memory_order_acquire); });
  if (!is_copied) return fail(Errc::unavailable, "the copy threads did not finish in time");
  return {};
}

Status CopyThreads::wait_idle(Work& work, Deadline deadline) {
  if (work.is_idle_.load(std::memory_order_acquire)) return {};
  std::unique_lock lock(mutex_);
  const bool is_idle = work_went_.wait_until(
      lock, deadline, [&] { return work.is_idle_.load(std::memory_order_acquire); });
  if (!is_idle) return fail(Errc::unavailable, "the copy threads did not finish in time");
  return {};
}

void CopyThreads::retire(Work& work) {
  while (!work.is_idle_.load(std::memory_order_acquire) && carry_out_next(work)) {
  }
  std::unique_lock lock(mutex_);
  // No deadline: a copy that still runs would write into memory that is about to be freed.
  work_went_.wait(lock, [&] { return work.is_idle_.load() && work.attached_ == 0; });
  forget(work);
}

void CopyThreads::run() {
  os::set_thread_name("ckpt-copy");
  std::unique_lock lock(mutex_);
  while (true) {
    Work* work = nullptr;
    work_came_.wait(lock, [&] { return is_stopping_ || (work = claimable()) != nullptr; });
    if (is_stopping_) return;
    ++work->attached_;
    lock.unlock();
    while (carry_out_next(*work)) {
    }
    lock.lock();
    --work->attached_;
    work_went_.notify_all();
  }
}

CopyThreads::Work* CopyThreads::claimable() {
  for (Work*& work : works_) {
    if (work == nullptr) continue;
    if (work->next_.load(std::memory_order_relaxed) < work->count_) return work;
    work = nullptr;
  }
  return nullptr;
}

void CopyThreads::forget(const Work& work) {
  std::replace(works_.begin(), works_.end(), const_cast<Work*>(&work), static_cast<Work*>(nullptr));
}

}  // namespace ckpt::device
