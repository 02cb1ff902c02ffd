// CallThread: a thread for calls into a library that may never return.
//
// The caller waits until a deadline. If the call has not returned by then, it is given up: the
// thread is left alone with what the call holds, and ends when the call does.
//
// Threads:  the caller's, one at a time. Lifetime: the destructor waits for a call that was not
//           given up; there is none, since `run` waits for each.
#pragma once

#include <ckpt/result.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "device/device.hpp"

namespace ckpt::device {

class CallThread {
 public:
  // `name` as os::set_thread_name takes it.
  static Result<std::unique_ptr<CallThread>> start(const std::string& name);
  ~CallThread();
  CallThread(const CallThread&) = delete;
  CallThread& operator=(const CallThread&) = delete;

  // Runs `call` there. It must own all that it uses. Errors: the call's; unavailable (this call, or
  // one before it, did not return in time).
  Status run(std::function<Status()> call, Deadline deadline);
  bool is_lost() const;

 private:
  struct Shared;
  explicit CallThread(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  const std::shared_ptr<Shared> shared_;  // With the thread.
  std::thread thread_;
};

}  // namespace ckpt::device
