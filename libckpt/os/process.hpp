// Process: another process by its pidfd, which unlike its number never means somebody else.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/task.hpp"
#include "os/fd.hpp"

namespace ckpt::os {

// Number and start time together name a process for good, also in files.
struct ProcessIdentity {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  // Since the machine's start.
  bool operator==(const ProcessIdentity&) const = default;
};

// Errors: not_found (no such process).
Result<ProcessIdentity> identify_process(pid_t pid);
// Errors: not_found, exhausted, unsupported (the kernel has no pidfd).
Result<Fd> open_process(pid_t pid);
// Also checks that the number was not given to another process meanwhile. Errors: and not_found.
Result<Fd> open_process(const ProcessIdentity& identity);

// True when it has ended, also while its parent has not yet asked how. All of its threads are gone
// then, and its memory can no longer be written.
bool is_gone(const Fd& process);
// True when it was halted by a signal or a debugger. Errors: not_found.
Result<bool> is_stopped(pid_t pid);
// For messages: its number and, when it is stopped, that and how it goes on.
std::string describe_process(pid_t pid);
// Success also when it is gone already. Errors: io (not ours to signal).
Status kill_process(const Fd& process, int signal);
// For our own children: takes the exit status, so that nothing of it remains.
enum class ChildState : std::uint8_t { running, exited, killed };
ChildState reap(const Fd& child);

// Calls back once when the process is gone.
// Threads:  the executor's. Lifetime: destroying it cancels surely, also after its context.
class ProcessWatch {
 public:
  // `gone` runs later, from the executor, also when the process is gone already.
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
