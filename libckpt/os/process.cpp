#include "os/process.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <optional>
#include <sstream>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace ckpt::os {

namespace {

struct StatLine {
  char state = 0;
  std::uint64_t start_ticks = 0;
};

// The name stands in parentheses and may itself contain any character, also parentheses, so parsing
// starts after the last one. Field 3 of proc(5) is the state, field 22 the start time.
std::optional<StatLine> read_stat(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line, '\0');
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  StatLine stat;
  if (!(fields >> stat.state)) return std::nullopt;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  if (!(fields >> stat.start_ticks)) return std::nullopt;
  return stat;
}

Unexpected no_process(pid_t pid) {
  return fail(Errc::not_found, "find process " + std::to_string(pid));
}

// `process` is a pidfd.
bool has_ended(int process) {
  pollfd waiting{process, POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&waiting, 1, 0);
  } while (ready < 0 && errno == EINTR);
  return ready > 0 && (waiting.revents & POLLIN) != 0;
}

}  // namespace

Result<ProcessIdentity> identify_process(pid_t pid) {
  const auto stat = read_stat(pid);
  if (!stat) return no_process(pid);
  return ProcessIdentity{pid, stat->start_ticks};
}

Result<Fd> open_process(pid_t pid) {
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (process) return process;
  if (errno == ESRCH || errno == EINVAL) return no_process(pid);
  const auto cause = last_system_error();
  if (errno == ENOSYS) {
    return fail(Errc::unsupported, "open process " + std::to_string(pid) + " by pidfd", cause);
  }
  return fail_system("open process " + std::to_string(pid), cause);
}

Result<Fd> open_process(const ProcessIdentity& identity) {
  CKPT_TRY(Fd process, open_process(identity.pid));
  // Read after opening: if the number has been reused, the descriptor names the new process too.
  CKPT_TRY(const ProcessIdentity found, identify_process(identity.pid));
  if (found != identity) return no_process(identity.pid);
  return process;
}

bool is_gone(const Fd& process) {
  return has_ended(process.number());
}

Result<bool> is_stopped(pid_t pid) {
  const auto stat = read_stat(pid);
  if (!stat) return no_process(pid);
  return stat->state == 'T';
}

std::string describe_process(pid_t pid) {
  const std::string number = std::to_string(pid);
  const auto stopped = is_stopped(pid);
  if (!stopped || !*stopped) return "pid " + number;
  return "pid " + number + ", which is stopped (`kill -CONT " + number + "` lets it go on)";
}

Status kill_process(const Fd& process, int signal) {
  if (::syscall(SYS_pidfd_send_signal, process.number(), signal, nullptr, 0) == 0) return {};
  if (errno == ESRCH) return {};
  return fail_system("send signal " + std::to_string(signal) + " to a process");
}

ChildState reap(const Fd& child) {
  siginfo_t info{};
  const int waited = ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(child.number()),
                              &info, WEXITED | WNOHANG);
  // ECHILD: somebody else has already collected the status.
  if (waited != 0) return ChildState::exited;
  if (info.si_pid == 0) return ChildState::running;
  return info.si_code == CLD_EXITED ? ChildState::exited : ChildState::killed;
}

// The pending operation owns it, so that it ends with the context; see base/parked.hpp.
class ProcessWatch::Wait : public std::enable_shared_from_this<Wait> {
 public:
  Wait(const asio::any_io_executor& executor, Fd process, std::function<void()> gone)
      : descriptor_(executor, process.release()), gone_(std::move(gone)) {}

  void start() {
    descriptor_.async_wait(
        asio::posix::stream_descriptor::wait_read,
        [self = shared_from_this()](boost::system::error_code error) { self->finish(error); });
  }
  void cancel() {
    const std::function<void()> dropped = std::exchange(gone_, nullptr);
    boost::system::error_code ignored;
    descriptor_.cancel(ignored);
  }

 private:
  // An event of Asio may be that of a descriptor closed just before, whose record in the reactor
  // this one has got. So the process itself is asked.
  void finish(boost::system::error_code error) {
    if (gone_ && !error && !has_ended(descriptor_.native_handle())) return start();
    const std::function<void()> gone = std::exchange(gone_, nullptr);
    if (gone) gone();
  }

  asio::posix::stream_descriptor descriptor_;
  std::function<void()> gone_;
};

Result<ProcessWatch> ProcessWatch::start(const asio::any_io_executor& executor, const Fd& process,
                                         std::function<void()> gone) {
  CKPT_TRY(Fd own, process.dup());
  const auto wait = std::make_shared<Wait>(executor, std::move(own), std::move(gone));
  wait->start();
  return ProcessWatch(std::weak_ptr<Wait>(wait));
}

ProcessWatch::ProcessWatch(std::weak_ptr<Wait> wait) : wait_(std::move(wait)) {}

ProcessWatch& ProcessWatch::operator=(ProcessWatch&& other) noexcept {
  wait_.swap(other.wait_);
  return *this;
}

ProcessWatch::~ProcessWatch() {
  if (const auto wait = wait_.lock()) wait->cancel();
}

}  // namespace ckpt::os
