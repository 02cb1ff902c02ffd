#include "device/call_thread.hpp"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "base/assert.hpp"
#include "os/thread_settings.hpp"

namespace ckpt::device {

struct CallThread::Shared {
  void serve();

  std::mutex mutex;
  std::condition_variable changed;
  // Under the lock.
  std::function<Status()> call;
  std::optional<Status> result;  // The newest call's; none: it has not returned.
  bool is_running = false;
  bool is_lost = false;
  bool is_stopping = false;
};

void CallThread::Shared::serve() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return is_stopping || call != nullptr; });
    if (call == nullptr) return;
    std::function<Status()> next = std::exchange(call, nullptr);
    lock.unlock();
    Status returned = next();
    next = nullptr;  // Frees what it holds before anybody learns of its end.
    lock.lock();
    CKPT_ASSERT(is_running);
    is_running = false;
    result = std::move(returned);
    changed.notify_all();
  }
}

Result<std::unique_ptr<CallThread>> CallThread::start(const std::string& name) {
  auto shared = std::make_shared<Shared>();
  std::unique_ptr<CallThread> started(new CallThread(shared));
  const os::SignalsBlocked blocked;
  try {
    started->thread_ = std::thread([shared, name] {
      os::set_thread_name(name);
      shared->serve();
    });
  } catch (const std::system_error& error) {
    return fail(Errc::exhausted, "start the thread " + name + ": " + error.what());
  }
  return started;
}

CallThread::~CallThread() {
  bool is_lost = false;
  {
    const std::lock_guard lock(shared_->mutex);
    CKPT_ASSERT(shared_->is_lost || !shared_->is_running);
    shared_->is_stopping = true;
    is_lost = shared_->is_lost;
  }
  shared_->changed.notify_all();
  if (!thread_.joinable()) return;
  if (is_lost) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

Status CallThread::run(std::function<Status()> call, Deadline deadline) {
  CKPT_ASSERT(call != nullptr);
  std::unique_lock lock(shared_->mutex);
  if (shared_->is_lost) return fail(Errc::unavailable, "an earlier call has not returned");
  CKPT_ASSERT(!shared_->is_running);
  shared_->call = std::move(call);
  shared_->result.reset();
  shared_->is_running = true;
  shared_->changed.notify_all();
  const bool has_returned =
      shared_->changed.wait_until(lock, deadline, [&] { return shared_->result.has_value(); });
  if (has_returned) return std::move(*shared_->result);
  shared_->is_lost = true;
  return fail(Errc::unavailable, "the call did not return in time, and was given up");
}

bool CallThread::is_lost() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->is_lost;
}

}  // namespace ckpt::device
