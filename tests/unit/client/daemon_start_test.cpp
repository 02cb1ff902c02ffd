// Goal:   a wait for a daemon says what is known of why none answers.
// Method: a "daemon" that is killed as soon as it runs, or ends, started by a clock that the test
//         moves; and a lock that somebody holds who does not listen.
#include "client/daemon_start.hpp"

#include <stdlib.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/pending.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::client {
namespace {

void write_program(const std::string& path, const std::string& lines) {
  std::ofstream(path) << "#!/bin/sh\n" << lines;
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

// Daemons of tests before.
void forget_children() {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

struct DyingDaemon {
  DyingDaemon()
      : clock(context), runtime(os::RuntimeDirectory::open(directory.file("run")).value()) {
    options.daemon_path = directory.file("dies");
    write_program(options.daemon_path, "kill -9 $$\n");
  }
  test::TemporaryDirectory directory;
  asio::io_context context;
  test::FakeClock clock;
  Options options;
  os::RuntimeDirectory runtime;
};

}  // namespace

TEST_CASE("daemon start: a daemon that keeps dying is reported with the next start",
          "[unit][client]") {
  forget_children();
  DyingDaemon place;
  DaemonStart start(place.clock, place.options, place.runtime);
  auto connecting =
      test::start(place.context, start.connect(place.clock.after(std::chrono::seconds(30))));
  for (std::size_t count = 0; count < RestartLimit::starts_in_window_max; ++count) {
    place.clock.poll();
    siginfo_t ended{};
    REQUIRE(::waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT) == 0);
    REQUIRE(place.clock.advance_to_next());
  }
  const auto connected = test::finish(place.clock, connecting);
  REQUIRE_FALSE(connected);
  const std::string text = connected.error().text();
  CAPTURE(text);
  CHECK(connected.error().code() == Errc::unavailable);
  CHECK(text.find("it died 5 times within 10 min") != std::string::npos);
  CHECK(text.find("the next start is in ") != std::string::npos);
  CHECK(text.find("it wrote nothing to its log") != std::string::npos);
}

TEST_CASE("daemon start: a daemon that ends at once is reported in its own words alone",
          "[unit][client]") {
  forget_children();
  DyingDaemon place;
  std::ofstream(place.runtime.log()) << "what an earlier daemon said\n";
  std::string lines = "exit 1\n", told = "; it wrote nothing to its log " + place.runtime.log();
  SECTION("nothing") {}
  SECTION("the reason") {
    lines = "echo starting; echo no such address >&2; exit 2\n";
    told = "; its log " + place.runtime.log() + " ends: no such address";
  }
  write_program(place.options.daemon_path, lines);
  DaemonStart start(place.clock, place.options, place.runtime);
  auto connecting =
      test::start(place.context, start.connect(place.clock.after(std::chrono::seconds(30))));
  place.clock.poll();
  siginfo_t ended{};
  REQUIRE(::waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT) == 0);
  const auto connected = test::finish(place.clock, connecting);
  REQUIRE_FALSE(connected);
  const std::string text = connected.error().text();
  CAPTURE(text);
  CHECK(connected.error().code() == Errc::io);
  CHECK(text.starts_with("start the daemon: " + place.options.daemon_path + ", pid "));
  CHECK(text.ends_with(", ended" + told));
}

// A trainer may change its environment at any time, on its own thread, and a daemon that died is
// started again on ours.
TEST_CASE("daemon start: the environment is that of the trainer when it opened", "[unit][client]") {
  forget_children();
  DyingDaemon place;
  write_program(place.options.daemon_path,
                "echo \"$CKPT_TEST_OPENED-$CKPT_TEST_LATE-$LIBCKPT_ALL_CORES\" >&2; exit 2\n");
  const std::string path = ::getenv("PATH");
  const bool is_in_path = GENERATE(false, true);
  if (is_in_path) {
    place.options.daemon_path.clear();
    ::setenv("LIBCKPT_DAEMON_PATH", "dies", 1);
    ::setenv("PATH", (place.directory.file("") + ":" + path).c_str(), 1);
  }
  ::setenv("CKPT_TEST_OPENED", "before", 1);
  ::unsetenv("LIBCKPT_ALL_CORES");
  DaemonStart start(place.clock, place.options, place.runtime);
  ::setenv("CKPT_TEST_OPENED", "after", 1);
  ::setenv("CKPT_TEST_LATE", "late", 1);
  ::setenv("LIBCKPT_ALL_CORES", "false", 1);
  ::setenv("PATH", path.c_str(), 1);
  ::unsetenv("LIBCKPT_DAEMON_PATH");
  auto connecting =
      test::start(place.context, start.connect(place.clock.after(std::chrono::seconds(30))));
  place.clock.poll();
  siginfo_t ended{};
  const int waited = ::waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT);
  const auto connected = test::finish(place.clock, connecting);
  for (const char* name : {"CKPT_TEST_OPENED", "CKPT_TEST_LATE", "LIBCKPT_ALL_CORES"})
    ::unsetenv(name);
  REQUIRE(waited == 0);
  REQUIRE_FALSE(connected);
  CHECK_THAT(connected.error().text(), Catch::EndsWith("ends: before--true"));
}

TEST_CASE("daemon start: daemons that the trainer did not find are named", "[unit][client]") {
  CHECK(other_daemons_text("/run/here", {}) == "");
  const std::string text = other_daemons_text("/run/here", {{7, "/run/there"}, {8, ""}});
  CHECK_THAT(text, Catch::StartsWith("no daemon ran in /run/here") &&
                       Catch::Contains(": pid 7 in /run/there, pid 8 in another directory. ") &&
                       Catch::Contains("LIBCKPT_RUNTIME_DIR"));
}

TEST_CASE("daemon start: a full file system is named, since it takes the log, too",
          "[unit][client]") {
  CHECK(why_no_log("/run/x", os::Space{0, 1 << 20})
            .starts_with("; the file system of /run/x is full: free some space"));
  CHECK(why_no_log("/run/x", os::Space{4095, 1 << 20}) != "");
  CHECK(why_no_log("/run/x", os::Space{4096, 1 << 20}) == "");
  CHECK(why_no_log("/proc", os::Space{0, 0}) == "");
  CHECK(why_no_log("/run/x", fail(Errc::io, "measure the space")) == "");
}

TEST_CASE("daemon start: a holder of the lock that does not listen is reported", "[unit][client]") {
  DyingDaemon place;
  const auto lock = os::LockFile::acquire(place.runtime.lock());
  REQUIRE(lock);
  DaemonStart start(place.clock, place.options, place.runtime);
  const auto connected = test::finish(
      place.clock,
      test::start(place.context, start.connect(place.clock.after(std::chrono::seconds(10)))));
  REQUIRE_FALSE(connected);
  CHECK(connected.error().text().find("a daemon holds " + place.runtime.lock()) !=
        std::string::npos);
}

}  // namespace ckpt::client
