#include "os/disk_threads.hpp"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/thread_settings.hpp"

namespace ckpt::os {

void set_disk_thread(const char* name, DiskPriority priority) {
  set_thread_name(name);
  if (priority != DiskPriority::background) return;
  // Both are hints: a kernel or container may refuse them without harm.
  const auto thread = static_cast<id_t>(syscall(SYS_gettid));
  (void)setpriority(PRIO_PROCESS, thread, 10);
  constexpr int ioprio_who_process = 1;
  constexpr int ioprio_idle = 3 << 13;
  (void)syscall(SYS_ioprio_set, ioprio_who_process, 0, ioprio_idle);
}

DiskThreads::DiskThreads(std::size_t threads, DiskPriority priority, const char* name) {
  CKPT_ASSERT(threads > 0);
  const SignalsBlocked blocked;
  for (std::size_t index = 0; index < threads; ++index) {
    threads_.emplace_back([this, priority, name] { work_until_stopped(priority, name); });
  }
}

DiskThreads::~DiskThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool DiskThreads::push(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= disk_queue_max) return false;
    queue_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

void DiskThreads::work_until_stopped(DiskPriority priority, const char* name) {
  set_disk_thread(name, priority);
  while (true) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
    }
    job();
  }
}

}  // namespace ckpt::os
