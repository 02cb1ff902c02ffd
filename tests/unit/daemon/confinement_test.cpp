// Goal:   a daemon with --confine-to serves jobs in its directories, and refuses another directory
//         when a trainer names it; a text that confines nothing is wrong use.
// Method: texts; then a whole Daemon in a forked child, since Landlock holds for good.
#include "daemon/confinement.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.hpp"
#include "daemon/daemon.hpp"
#include "os/landlock.hpp"
#include "os/small_file.hpp"
#include "support/in_child.hpp"
#include "support/patience.hpp"
#include "support/run_task.hpp"
#include "support/temporary_directory.hpp"
#include "wire/control_codec.hpp"

using Catch::Contains;

namespace ckpt::daemon {
namespace {

namespace control = wire::control;
using test::comes_true;

bool is_left_out() {
  if (os::landlock_version() >= os::landlock_version_wanted) return false;
  WARN("left out: this kernel has no Landlock of version 2");
  return true;
}

std::string logged;  // All lines of a child, one after the other.

// The log of a child that confines itself, and the error.
struct Confined {
  Confined() {
    for (const char* name : {"run", "ckpt", "elsewhere"})
      std::filesystem::create_directory(directory.file(name));
    std::filesystem::permissions(directory.file("run"), std::filesystem::perms::owner_all);
    options.runtime_dir = directory.file("run");
    options.log_file = directory.file("run/ckptd.log");
    options.confine_to = directory.file("ckpt");
    options.memory_budget = 64 << 20;
  }
  std::string say() const {
    return test::in_child([this] {
      Log::set_sink([](LogLevel, std::string_view line) { logged.append(line).append("\n"); });
      if (const Status opened = Log::open_file(options.log_file); !opened)
        return opened.error().message();
      const auto confined = confine(options);
      if (!confined) return confined.error().message();
      const Status again = Log::open_file(options.log_file);  // As when it was moved away.
      return again ? logged : again.error().message();
    });
  }
  test::TemporaryDirectory directory;
  DaemonOptions options;
};

// Asks the daemon in the same process for a job's directory. Returns its error; empty: taken.
std::string attach(const std::string& runtime_dir, const std::string& directory,
                   const std::string& job) {
  asio::io_context context;
  const auto clock = make_system_clock(context.get_executor());
  const Time soon = clock->after(std::chrono::seconds(30));
  auto connection =
      test::run_task(context, os::connect_local(*clock, runtime_dir + "/ckptd.sock", soon));
  if (!connection) return connection.error().message();
  control::Attach attach;
  attach.start_time = os::identify_process(::getpid()).value().start_ticks;
  attach.job = job;
  attach.node = "A";
  attach.nodes = {{"A", "A", ""}};
  attach.dir = directory;
  for (const control::Message& message :
       {control::Message(control::our_hello()), control::Message(attach)}) {
    auto encoded = control::encode(message).value();
    if (!test::run_task(context, connection->send(std::move(encoded), soon))) return "not sent";
    auto answer = test::run_task(context, connection->receive(soon));
    if (!answer) return answer.error().message();
    const auto decoded = control::decode(*answer);
    if (!decoded) return decoded.error().message();
    const auto* attached = std::get_if<control::AttachAnswer>(&*decoded);
    if (attached != nullptr) return attached->result ? "" : attached->result.error().message();
  }
  return "no answer";
}

}  // namespace

TEST_CASE("confinement: absolute directories with commas between them", "[unit][daemon]") {
  using Texts = std::vector<std::string>;
  CHECK(parse_directories("").value().empty());
  CHECK(parse_directories("/ckpt").value() == Texts{"/ckpt"});
  CHECK(parse_directories("/ckpt/, /scratch/my ckpt ,/c").value() ==
        Texts{"/ckpt", "/scratch/my ckpt", "/c"});
  for (const char* text : {"ckpt", "/ckpt,", ",/ckpt", "/ckpt,,/c", " ", "/", "/ckpt,//", "./ckpt",
                           "s3://bucket/run"}) {
    INFO(text);
    const auto parsed = parse_directories(text);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().code() == Errc::invalid_argument);
  }
}

TEST_CASE("confinement: a directory that is not there is wrong use, and none is no confinement",
          "[unit][daemon]") {
  Confined confined;
  confined.options.confine_to = confined.directory.file("missing");
  const auto refused = confine(confined.options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  CHECK_THAT(refused.error().text(), Contains(confined.options.confine_to));
  confined.options.confine_to.clear();
  CHECK(confine(confined.options).value().empty());
  CHECK(std::filesystem::create_directory(confined.directory.file("free")));
}

TEST_CASE("confinement: the log says where files may change, and what a site must know",
          "[unit][daemon]") {
  if (is_left_out()) return;
  Confined confined;
  const std::string plain = confined.say();
  CHECK_THAT(plain, Contains("change files only below " + confined.directory.file("ckpt")));
  CHECK_THAT(plain, !Contains("mount point") && !Contains("without end"));
  confined.options.log_file = confined.directory.file("elsewhere/ckptd.log");
  CHECK_THAT(confined.say(), Contains("the log " + confined.options.log_file + " grows"));
  confined.options.log_file = confined.directory.file("ckpt/ckptd.log");
  CHECK_THAT(confined.say(), !Contains("grows"));
  confined.options.confine_to += ",/proc";
  CHECK_THAT(confined.say(), Contains("/proc is a mount point"));
}

TEST_CASE("confinement: a daemon takes jobs inside, and refuses others by name", "[unit][daemon]") {
  if (is_left_out()) return;
  Confined confined;
  const std::string in = confined.directory.file("ckpt/run");
  const std::string out = confined.directory.file("elsewhere/run");
  const std::string said = test::in_child([&]() -> std::string {
    Log::set_sink([](LogLevel, std::string_view) {});
    auto opened = Daemon::open(confined.options);
    if (!opened) return opened.error().message();
    Daemon* const daemon = opened->release();  // It runs until the child's end.
    std::thread thread([daemon] { (void)daemon->run(); });
    const std::string inside = attach(confined.options.runtime_dir, in, "one");
    const std::string outside = attach(confined.options.runtime_dir, out, "two");
    thread.detach();
    return inside.empty() ? outside : "inside: " + inside;
  });
  CHECK_THAT(said, Contains("changes files only below " + confined.directory.file("ckpt")) &&
                       Contains(out) && Contains("Permission denied"));
  CHECK(std::filesystem::exists(in + "/.libckpt/run.json"));
  CHECK(std::filesystem::is_empty(confined.directory.file("elsewhere")));
}

TEST_CASE("confinement: a runtime directory that is removed comes again if the one above is named",
          "[unit][daemon]") {
  if (is_left_out()) return;
  const bool is_named = GENERATE(true, false);
  Confined confined;
  DaemonOptions& options = confined.options;
  std::filesystem::create_directory(confined.directory.file("user"));
  options.runtime_dir = confined.directory.file("user/libckpt");
  options.log_file = confined.directory.file("ckpt/ckptd.log");
  if (is_named) options.confine_to += "," + confined.directory.file("user");
  const std::string ready = options.runtime_dir + "/ckptd.json";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto daemon = Daemon::open(options);
    if (daemon) (void)(*daemon)->run();
    std::_Exit(1);
  }
  CHECK(comes_true([&] { return std::filesystem::exists(ready); }));
  std::filesystem::remove_all(options.runtime_dir);
  CHECK(comes_true([&] {
    if (is_named) return std::filesystem::exists(ready);
    const auto log = os::read_file(options.log_file, 1 << 20);
    return log && log->find("--confine-to must name the directory above") != std::string::npos;
  }));
  CHECK(std::filesystem::exists(ready) == is_named);
  ::kill(child, SIGKILL);
  CHECK(::waitpid(child, nullptr, 0) == child);
}

}  // namespace ckpt::daemon
