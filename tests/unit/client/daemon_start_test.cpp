// Goal:   who waits for a daemon is told what is known of why none answers.
// Method: a "daemon" that is killed as soon as it runs, started by a clock that the test moves; and
//         a lock that somebody holds who does not listen.
#include "client/daemon_start.hpp"

#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "support/pending.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::client {
namespace {

struct Place {
  Place() : clock(context), runtime(os::RuntimeDirectory::open(directory.file("run")).value()) {
    options.daemon_path = directory.file("dies");
    std::ofstream(options.daemon_path) << "#!/bin/sh\nkill -9 $$\n";
    std::filesystem::permissions(options.daemon_path, std::filesystem::perms::owner_all);
  }
  test::TemporaryDirectory directory;
  asio::io_context context;
  test::FakeClock clock;
  Options options;
  os::RuntimeDirectory runtime;
};

}  // namespace

TEST_CASE("daemon start: a daemon that keeps dying is told with the next start", "[unit][client]") {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {  // Daemons of tests before this one.
  }
  Place place;
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
}

TEST_CASE("daemon start: who holds the lock and does not listen is told of", "[unit][client]") {
  Place place;
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
