// DiskThreads: a few threads that make the blocking calls, so that no executor ever waits for a
// disk.
//
// A call that hangs in the kernel (a dead NFS server) blocks one thread. When all of them hang,
// other calls wait in the queue, and a full queue is an error. The caller's executor never blocks.
//
// Lifetime: the destructor finishes what was queued, then joins: destroy it before the contexts
//           whose coroutines use it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/assert.hpp"
#include "os/completion.hpp"

namespace ckpt::os {

inline constexpr std::size_t disk_thread_count = 4;
// The callers above never queue more: each keeps at most 32 calls in flight.
inline constexpr std::size_t disk_queue_max = 4096;

// Idle i/o priority where the scheduler knows it, and nice 10.
enum class DiskPriority : std::uint8_t { normal, background };
void set_disk_thread(const char* name, DiskPriority priority);

class DiskThreads {
 public:
  DiskThreads(std::size_t threads, DiskPriority priority, const char* name = "ckptd-disk");
  ~DiskThreads();
  DiskThreads(const DiskThreads&) = delete;
  DiskThreads& operator=(const DiskThreads&) = delete;

  // Runs `work` on one of the threads. Errors: those of `work`; exhausted (the queue is full).
  template <class T>
  Task<T> run(std::function<Result<T>()> work);
  // The same without waiting for it. Returns false when the queue is full.
  bool post(std::function<void()> work) { return push(std::move(work)); }

 private:
  // Returns false when the queue is full.
  bool push(std::function<void()> job);
  void work_until_stopped(DiskPriority priority, const char* name);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

template <class T>
Task<T> DiskThreads::run(std::function<Result<T>()> work) {
  // Shared with the job, which may outlive this frame when the context is destroyed.
  const auto result = std::make_shared<std::optional<Result<T>>>();
  StartWork start = [this, result, work = std::move(work)](std::unique_ptr<Completion> completion) {
    const std::shared_ptr<Completion> shared = std::move(completion);
    const bool queued = push([result, work, shared] {
      result->emplace(work());
      shared->complete(0);
    });
    if (!queued) shared->complete(-1);
  };
  const std::int64_t done = co_await await_completion(std::move(start));
  if (done < 0) co_return fail(Errc::exhausted, "the queue to the disk threads is full");
  CKPT_ASSERT(result->has_value());
  co_return std::move(**result);
}

}  // namespace ckpt::os
