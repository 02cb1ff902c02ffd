// Goal:   a process is known by what it is, and not by a number that may be given out again; what
// we
//         start shares nothing with us.
// Method: real children that wait on a pipe, stop, change their name and end.
#include "os/process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "os/disk_threads.hpp"
#include "os/limits.hpp"
#include "os/spawn.hpp"
#include "os/thread_settings.hpp"
#include "support/descriptors.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::test {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A child that lives until it is killed or the test ends.
struct Child {
  explicit Child(const char* name = "plain") {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_NAME, name);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      [[maybe_unused]] const ssize_t told = ::write(ends[1], "x", 1);
      for (;;) ::pause();
    }
    char ready = 0;
    REQUIRE(::read(ends[0], &ready, 1) == 1);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Child() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid = 0;
};

void wait_until_stopped(pid_t pid) {
  int status = 0;
  REQUIRE(::waitpid(pid, &status, WUNTRACED) == pid);
  REQUIRE(WIFSTOPPED(status));
}

TEST_CASE("process: a killed process is gone, also before it is reaped", "[unit][os]") {
  const std::size_t before = open_descriptors();
  {
    const Child child;
    auto process = os::open_process(child.pid);
    REQUIRE(process);
    CHECK(!os::is_gone(*process));
    CHECK(os::reap(*process) == os::ChildState::running);
    REQUIRE(os::kill_process(*process, SIGKILL));
    siginfo_t info{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOWAIT) == 0);
    CHECK(os::is_gone(*process));
    CHECK(os::reap(*process) == os::ChildState::killed);
    CHECK(os::kill_process(*process, SIGKILL));
    CHECK(os::is_gone(*process));
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("process: an identity is the process's own, whatever its name contains", "[unit][os]") {
  const Child child("a) R (1 2 3");
  const auto identity = os::identify_process(child.pid);
  REQUIRE(identity);
  CHECK(identity->start_ticks > 0);
  CHECK(*os::is_stopped(child.pid) == false);
  CHECK(os::open_process(*identity));
  os::ProcessIdentity earlier = *identity;
  --earlier.start_ticks;
  const auto refused = os::open_process(earlier);
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::not_found);
}

TEST_CASE("process: a stopped process is seen as stopped until it goes on", "[unit][os]") {
  const Child child;
  ::kill(child.pid, SIGSTOP);
  wait_until_stopped(child.pid);
  CHECK(*os::is_stopped(child.pid));
  const std::string number = std::to_string(child.pid);
  CHECK(os::describe_process(child.pid).find("`kill -CONT " + number + "`") != std::string::npos);
  ::kill(child.pid, SIGCONT);
  int status = 0;
  REQUIRE(::waitpid(child.pid, &status, WCONTINUED) == child.pid);
  CHECK(!*os::is_stopped(child.pid));
  CHECK(os::describe_process(child.pid) == "pid " + number);
}

TEST_CASE("process: a process that a debugger looks at is not stopped", "[unit][os]") {
  const Child child;
  REQUIRE(::ptrace(PTRACE_SEIZE, child.pid, nullptr, nullptr) == 0);
  REQUIRE(::ptrace(PTRACE_INTERRUPT, child.pid, nullptr, nullptr) == 0);
  wait_until_stopped(child.pid);
  CHECK(!*os::is_stopped(child.pid));
  CHECK(os::describe_process(child.pid) == "pid " + std::to_string(child.pid));
  REQUIRE(::ptrace(PTRACE_DETACH, child.pid, nullptr, nullptr) == 0);
}

TEST_CASE("process: there is no such process", "[unit][os]") {
  pid_t ended = ::fork();
  if (ended == 0) std::_Exit(0);
  ::waitpid(ended, nullptr, 0);
  for (const pid_t pid : {ended, pid_t{-1}}) {
    const auto process = os::open_process(pid);
    REQUIRE(!process);
    CHECK(process.error().code() == Errc::not_found);
    CHECK(!os::identify_process(pid));
    CHECK(!os::is_stopped(pid));
  }
}

TEST_CASE("process watch: calls once, from the executor, when the process ends", "[unit][os]") {
  asio::io_context context;
  const Child child;
  auto process = os::open_process(child.pid);
  REQUIRE(process);
  int calls = 0;
  auto watch = os::ProcessWatch::start(context.get_executor(), *process, [&] { ++calls; });
  REQUIRE(watch);
  context.poll();
  CHECK(calls == 0);
  REQUIRE(os::kill_process(*process, SIGKILL));
  CHECK(calls == 0);
  context.run();
  CHECK(calls == 1);
  auto late = os::ProcessWatch::start(context.get_executor(), *process, [&] { ++calls; });
  CHECK(calls == 1);
  context.restart();
  context.run();
  CHECK(calls == 2);
}

TEST_CASE("process watch: destroyed, it never calls and leaks nothing", "[unit][os]") {
  const std::size_t before = open_descriptors();
  int calls = 0;
  {
    asio::io_context context;
    const Child child;
    auto process = os::open_process(child.pid);
    REQUIRE(process);
    {
      auto watch = os::ProcessWatch::start(context.get_executor(), *process, [&] { ++calls; });
      REQUIRE(watch);
      const os::ProcessWatch moved(std::move(*watch));
      context.poll();
    }
    REQUIRE(os::kill_process(*process, SIGKILL));
    context.restart();
    context.run();
  }
  CHECK(calls == 0);
  CHECK(open_descriptors() == before);
}

// Two descriptors are ready at once, and the handler of the first closes the second. The
// reactor's record for that one, with the event that waits there, goes to the next descriptor.
TEST_CASE("process watch: the event of a descriptor that was closed ends no process",
          "[unit][os]") {
  const Child child;
  const auto process = os::open_process(child.pid);
  REQUIRE(process);
  int first_ends[2], second_ends[2];
  REQUIRE(::pipe2(first_ends, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(second_ends, O_CLOEXEC) == 0);
  asio::io_context context;
  asio::posix::stream_descriptor first(context, first_ends[0]);
  auto second = std::make_unique<asio::posix::stream_descriptor>(context, second_ends[0]);
  int calls = 0;
  std::optional<os::ProcessWatch> watch;
  first.async_wait(asio::posix::stream_descriptor::wait_read, [&](boost::system::error_code) {
    second.reset();
    auto started = os::ProcessWatch::start(context.get_executor(), *process, [&] { ++calls; });
    if (started) watch.emplace(std::move(*started));
  });
  context.poll();
  for (const int end : {first_ends[1], second_ends[1]}) REQUIRE(::write(end, "x", 1) == 1);
  context.poll();
  REQUIRE(watch);
  CHECK(calls == 0);
  REQUIRE(os::kill_process(*process, SIGKILL));
  context.run();
  CHECK(calls == 1);
  for (const int end : {first_ends[1], second_ends[1]}) ::close(end);
}

TEST_CASE("process watch: the context may go first", "[unit][os]") {
  auto context = std::make_unique<asio::io_context>();
  const Child child;
  auto process = os::open_process(child.pid);
  REQUIRE(process);
  int calls = 0;
  auto watch = os::ProcessWatch::start(context->get_executor(), *process, [&] { ++calls; });
  REQUIRE(watch);
  context.reset();
  CHECK(calls == 0);
}

TEST_CASE("spawn: a program of its own session with nothing of ours open", "[unit][os]") {
  const TemporaryDirectory directory;
  const std::size_t before = open_descriptors();
  // Without close-on-exec, as a careless library would open it.
  const os::Fd inherited(::open("/dev/null", O_RDONLY));
  std::signal(SIGUSR1, SIG_IGN);
  sigset_t blocked;
  sigset_t old;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR2);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &old);
  ::setenv("CKPT_TEST_GONE", "1", 1);
  os::SpawnOptions options;
  options.program = "sh";
  options.arguments = {"-c",
                       "echo $$ $(cut -d' ' -f6 /proc/$$/stat); ls /proc/$$/fd; "
                       "readlink /proc/$$/fd/0; echo \"$CKPT_TEST_SET-$CKPT_TEST_GONE\"; "
                       "grep -E 'SigBlk|SigIgn' /proc/self/status; echo failed >&2; exit 3"};
  options.environment = os::EnvironmentCopy::of_process();
  options.environment.set("CKPT_TEST_SET", "yes");
  options.environment.remove("CKPT_TEST_GONE");
  options.log_path = directory.file("log");
  auto spawned = os::spawn_detached(options);
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  std::signal(SIGUSR1, SIG_DFL);
  ::unsetenv("CKPT_TEST_GONE");
  REQUIRE(spawned);
  int status = 0;
  REQUIRE(::waitpid(spawned->pid, &status, 0) == spawned->pid);
  CHECK(WEXITSTATUS(status) == 3);
  CHECK(os::is_gone(spawned->process));
  std::istringstream log(text_of(options.log_path));
  pid_t pid = 0;
  pid_t session = 0;
  log >> pid >> session;
  CHECK(pid == spawned->pid);
  CHECK(session == pid);
  std::string line;
  std::getline(log, line);
  std::getline(log, line);
  // Standard input, output and error, then what the input is.
  for (const char* expected : {"0", "1", "2", "/dev/null"}) {
    CHECK(line == expected);
    std::getline(log, line);
  }
  CHECK(line == "yes-");
  std::getline(log, line);
  CHECK(line == "SigBlk:\t0000000000000000");
  std::getline(log, line);
  // The C library keeps two of them for itself.
  CHECK((line == "SigIgn:\t0000000000000000" || line == "SigIgn:\t0000000180000000"));
  std::getline(log, line);
  CHECK(line == "failed");
  spawned->process.reset();
  CHECK(open_descriptors() == before + 1);
}

TEST_CASE("spawn: a program that is not there, or a log that cannot be, is an error",
          "[unit][os]") {
  const TemporaryDirectory directory;
  os::SpawnOptions options;
  options.program = directory.file("nothing");
  options.log_path = directory.file("log");
  const auto missing = os::spawn_detached(options);
  REQUIRE(!missing);
  CHECK(missing.error().code() == Errc::not_found);
  options.program = "ckpt-no-such-program";
  const auto unknown = os::spawn_detached(options);
  REQUIRE(!unknown);
  CHECK(unknown.error().code() == Errc::not_found);
  options.program = "true";
  options.log_path = directory.file("no/where");
  const auto no_log = os::spawn_detached(options);
  REQUIRE(!no_log);
  CHECK(no_log.error().message().find("no/where") != std::string::npos);
}

TEST_CASE("limits: raising brings the soft limit to the hard one", "[unit][os]") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit lowered{64, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &lowered) == 0);
  CHECK(os::limit_values(os::Limit::open_files)->soft == 64);
  const auto raised = os::raise_limit(os::Limit::open_files);
  REQUIRE(raised);
  CHECK(raised->soft == raised->hard);
  CHECK(os::limit_values(os::Limit::open_files)->soft == raised->hard);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(os::limit_values(os::Limit::locked_memory)->soft <=
        os::limit_values(os::Limit::locked_memory)->hard);
}

TEST_CASE("thread settings: a thread has its name", "[unit][os]") {
  std::string name;
  std::thread([&] {
    os::set_thread_name("ckptd-disk-with-a-long-name");
    char text[16] = {};
    ::pthread_getname_np(::pthread_self(), text, sizeof text);
    name = text;
  }).join();
  CHECK(name == "ckptd-disk-with");
}

// The state of a new process after it gave way twice: nice, and the line of its session's group,
// which is empty where the kernel has no such groups.
struct GaveWay {
  bool is_done = false;
  int nice = 0;
  std::string session;
};
GaveWay give_way_in_a_process(bool leads_a_session) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (leads_a_session) ::setsid();
    const bool is_done = os::give_way(7) && os::give_way(3);
    const int nice = ::getpriority(PRIO_PROCESS, 0);
    (void)!::write(ends[1], &is_done, sizeof is_done);
    (void)!::write(ends[1], &nice, sizeof nice);
    char text[64];
    const int group = ::open("/proc/self/autogroup", O_RDONLY);
    const ssize_t count = ::read(group, text, sizeof text);
    if (count > 0) (void)!::write(ends[1], text, static_cast<std::size_t>(count));
    ::_exit(0);
  }
  ::close(ends[1]);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  GaveWay answer;
  REQUIRE(::read(ends[0], &answer.is_done, sizeof answer.is_done) == sizeof answer.is_done);
  REQUIRE(::read(ends[0], &answer.nice, sizeof answer.nice) == sizeof answer.nice);
  char text[64];
  const ssize_t count = ::read(ends[0], text, sizeof text);
  if (count > 0) answer.session.assign(text, static_cast<std::size_t>(count));
  ::close(ends[0]);
  return answer;
}

TEST_CASE("thread settings: threads of ours begin with a trainer's signals blocked", "[unit][os]") {
  sigset_t none, before, after, of_thread;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, &before);
  const auto look = [&] { ::pthread_sigmask(SIG_SETMASK, nullptr, &of_thread); };
  SECTION("by hand") {
    std::thread thread;
    {
      const os::SignalsBlocked blocked;
      thread = std::thread(look);
    }
    thread.join();
  }
  SECTION("those of a disk") {
    os::DiskThreads threads(1, os::DiskPriority::normal, "ckpt-test");
    std::promise<void> looked;
    REQUIRE(threads.post([&] {
      look();
      looked.set_value();
    }));
    looked.get_future().wait();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGALRM, SIGUSR1}) {
    CHECK(::sigismember(&of_thread, signal) == 1);
    CHECK(::sigismember(&after, signal) == 0);
  }
}

TEST_CASE("thread settings: a thread that gives way never rises again", "[unit][os]") {
  const int before = ::getpriority(PRIO_PROCESS, 0);
  const GaveWay alone = give_way_in_a_process(false);
  CHECK(alone.is_done);
  CHECK(alone.nice == std::max(before, 7));
  CHECK(::getpriority(PRIO_PROCESS, 0) == before);
}

TEST_CASE("thread settings: only the leader of a session lowers all of it", "[unit][os]") {
  const GaveWay leader = give_way_in_a_process(true);
  CHECK(leader.is_done);
  if (leader.session.empty()) return;  // Such a kernel compares nice between all processes.
  CHECK(leader.session.ends_with(" nice 7\n"));
  CHECK_FALSE(give_way_in_a_process(false).session.ends_with(" nice 7\n"));
}

}  // namespace
}  // namespace ckpt::test
