// Process: another process by its pidfd, which unlike a number is never reused.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/task.hpp"
#include "os/fd.hpp"

namespace ckpt::os {

// A number and a start time together identify a process for good, also in files.
struct ProcessIdentity {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  // Since boot.
  bool operator==(const ProcessIdentity&) const = default;
};

// Errors: not_found (no such process).
Result<ProcessIdentity> identify_process(pid_t pid);
// Errors: not_found, exhausted, unsupported (the kernel has no pidfd).
Result<Fd> open_process(pid_t pid);
// Also checks that the number was not reused. Errors: as above, and not_found.
Result<Fd> open_process(const ProcessIdentity& identity);

// True when the process has ended, even if its parent has not collected the status yet. All its
// threads are gone then, and it can no longer write to memory.
bool is_gone(const Fd& process);
// True while a signal has stopped it (SIGSTOP, Ctrl-Z). False under a debugger or a profiler, which
// let it go on by themselves. Errors: not_found.
Result<bool> is_stopped(pid_t pid);
// For messages: the number and, if it is stopped, that fact and how to continue it.
std::string describe_process(pid_t pid);
// Also succeeds when the process is already gone. Errors: io (not ours to signal).
Status kill_process(const Fd& process, int signal);
// For our own children: collects the exit status, so that no zombie remains.
enum class ChildState : std::uint8_t { running, exited, killed };
ChildState reap(const Fd& child);

// Calls back once when the process is gone.
// Threads: the executor's. Lifetime: destroying it cancels for certain, also after its context.
class ProcessWatch {
 public:
  // Calls `gone` later, from the executor, also if the process is already gone.
  static Result<ProcessWatch> start(const asio::any_io_executor& executor, const Fd& process,
                                    std::function<void()> gone);

  ProcessWatch(ProcessWatch&&) noexcept = default;
  ProcessWatch& operator=(ProcessWatch&& other) noexcept;
  ~ProcessWatch();

 private:
  class Wait;
  explicit ProcessWatch(std::weak_ptr<Wait> wait);
  std::weak_ptr<Wait> wait_;  // The pending operation owns it.
};

}  // namespace ckpt::os
