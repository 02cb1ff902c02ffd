#include "bench/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <utility>

#include "bench/must.hpp"

namespace bench {

namespace {

constexpr int not_found_code = 127;

[[noreturn]] void become(const Command& command, int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(output, STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& argument : command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  ::_exit(not_found_code);
}

}  // namespace

Process Process::start(const Command& command) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) give_up("no pipe");
  const pid_t pid = ::fork();
  if (pid < 0) give_up("no process for " + command.front());
  if (pid == 0) become(command, ends[1]);
  ::close(ends[1]);
  return Process(pid, ends[0]);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::exchange(other.output_, -1)),
      unread_(std::move(other.unread_)) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(output_, other.output_);
  std::swap(unread_, other.unread_);
  return *this;
}

Process::~Process() {
  if (pid_ > 0) {
    kill(SIGKILL);
    wait();
  }
  if (output_ >= 0) ::close(output_);
}

std::string Process::read_line(std::chrono::milliseconds deadline) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  for (;;) {
    const auto end = unread_.find('\n');
    if (end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    pollfd waited{output_, POLLIN, 0};
    char bytes[4096];
    if (left.count() <= 0 || ::poll(&waited, 1, static_cast<int>(left.count())) <= 0)
      give_up("a process of the bench says nothing");
    const ssize_t got = ::read(output_, bytes, sizeof bytes);
    if (got <= 0) give_up("a process of the bench ended before its time");
    unread_.append(bytes, static_cast<std::size_t>(got));
  }
}

std::string Process::read_all() {
  std::string all = std::exchange(unread_, {});
  char bytes[4096];
  for (ssize_t got; (got = ::read(output_, bytes, sizeof bytes)) > 0;)
    all.append(bytes, static_cast<std::size_t>(got));
  return all;
}

int Process::wait() {
  int status = 0;
  if (pid_ > 0) ::waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void Process::kill(int signal) {
  if (pid_ > 0) ::kill(pid_, signal);
}

std::string output_of(const Command& command) {
  Process process = Process::start(command);
  const std::string said = process.read_all();
  const int code = process.wait();
  if (code != 0) give_up(command.front() + " ended with " + std::to_string(code) + ": " + said);
  return said;
}

bool succeeds(const Command& command) {
  Process process = Process::start(command);
  process.read_all();
  return process.wait() == 0;
}

std::string own_path() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

}  // namespace bench
