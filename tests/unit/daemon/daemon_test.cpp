// Goal:   whoever connects to the daemon gets an answer or is let go, one daemon runs in a place,
//         and it leaves nothing behind when it ends.
// Method: a real Daemon on a thread, in a directory of its own, spoken to over its real socket.
#include "daemon/daemon.hpp"

#include <signal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "daemon/ready_file.hpp"
#include "daemon/trainer_session.hpp"
#include "os/small_file.hpp"
#include "support/patience.hpp"
#include "support/run_task.hpp"
#include "support/temporary_directory.hpp"
#include "wire/control_codec.hpp"

namespace ckpt::daemon {
namespace {

namespace control = wire::control;
using test::comes_true;

struct Running {
  explicit Running(const std::string& place = "run") {
    options.runtime_dir = directory.file(place);
    std::filesystem::create_directories(parent());
    options.memory_budget = 64 << 20;
    auto opened = Daemon::open(options);
    if (!opened) FAIL(opened.error().message());
    daemon = std::move(*opened);
    thread = std::thread([this] { status = daemon->run(); });
  }
  ~Running() {
    if (thread.joinable()) stop();
  }
  std::string path(const char* name) const { return options.runtime_dir + "/" + name; }
  std::filesystem::path parent() const {
    return std::filesystem::path(options.runtime_dir).parent_path();
  }
  void stop();
  void join() { thread.join(); }

  test::TemporaryDirectory directory;
  DaemonOptions options;
  std::unique_ptr<Daemon> daemon;
  std::thread thread;
  Status status = fail(Errc::unavailable, "it runs");
};

// One connection, and words exchanged over it.
struct Caller {
  explicit Caller(const Running& running)
      : clock(make_system_clock(context.get_executor())),
        connection(
            test::run_task(context, os::connect_local(*clock, running.path("ckptd.sock"), soon()))
                .value()) {}
  Time soon() const { return clock->after(std::chrono::seconds(30)); }
  Status send(const control::Message& message) {
    auto encoded = control::encode(message).value();
    return test::run_task(context, connection.send(std::move(encoded), soon()));
  }
  Result<control::Message> receive() {
    CKPT_TRY(auto message, test::run_task(context, connection.receive(soon())));
    return control::decode(message);
  }
  control::Answer ask(const control::Message& question) {
    REQUIRE(send(control::our_hello()));
    REQUIRE(std::holds_alternative<control::Hello>(receive().value()));
    REQUIRE(send(question));
    return std::get<control::Answer>(receive().value());
  }

  asio::io_context context;
  std::unique_ptr<Clock> clock;
  os::LocalConnection connection;
};

void Running::stop() {
  CHECK(Caller(*this).ask(control::Stop{std::chrono::seconds(10), true}).result);
  join();
}

}  // namespace

TEST_CASE("daemon: it tells its state, and ends on request without a trace", "[unit][daemon]") {
  Running running;
  const auto ready = parse_ready(os::read_file(running.path("ckptd.json"), 4096).value());
  REQUIRE(ready);
  CHECK(ready->process.pid == ::getpid());

  const auto answer = Caller(running).ask(control::AskStatus{});
  REQUIRE(answer.result);
  const auto json = nlohmann::json::parse(answer.json);
  CHECK(json["daemon"]["pid"] == ::getpid());
  CHECK(json["memory"]["budget_bytes"] == 64 << 20);
  CHECK(json["jobs"].empty());

  running.stop();
  CHECK(running.status);
  running.daemon.reset();
  CHECK_FALSE(std::filesystem::exists(running.path("ckptd.sock")));
  CHECK_FALSE(std::filesystem::exists(running.path("ckptd.json")));
  CHECK(os::LockFile::acquire(running.path("ckptd.lock")));
}

TEST_CASE("daemon: a second one in the same place is refused and told of the first",
          "[unit][daemon]") {
  const Running running;
  const auto second = Daemon::open(running.options);
  REQUIRE_FALSE(second);
  CHECK(second.error().code() == Errc::unavailable);
  CHECK(second.error().text().find(std::to_string(::getpid())) != std::string::npos);
  CHECK(second.error().text().find("ckpt stop") != std::string::npos);
}

TEST_CASE("daemon: a directory that was removed is made again, with all that was in it",
          "[unit][daemon]") {
  Running running;
  std::filesystem::remove_all(running.options.runtime_dir);
  REQUIRE(comes_true([&] { return std::filesystem::exists(running.path("ckptd.log")); }));

  const auto found = os::RuntimeDirectory::find(running.options.runtime_dir);
  REQUIRE(found);  // With the mode that it must have.
  CHECK(os::LockFile::is_held(found->lock()));
  const auto ready = parse_ready(os::read_file(found->ready(), 4096).value());
  REQUIRE(ready);
  CHECK(ready->process.pid == ::getpid());
  CHECK(Caller(running).ask(control::AskStatus{}).result);
  CHECK_FALSE(Daemon::open(running.options));
  running.stop();
  CHECK(running.status);
}

TEST_CASE("daemon: a directory whose parent went, too, is made again once that is there",
          "[unit][daemon]") {
  const Running running("user/libckpt");
  std::filesystem::remove_all(running.parent());
  std::filesystem::create_directory(running.parent());
  REQUIRE(comes_true([&] { return std::filesystem::exists(running.path("ckptd.log")); }));
  CHECK(Caller(running).ask(control::AskStatus{}).result);
}

TEST_CASE("daemon: a place that another one has taken is left to it, and taken when it is free",
          "[unit][daemon]") {
  Running running;
  const std::string away = running.directory.file("away");
  // It has its lock, and does not listen yet.
  const auto staged = os::RuntimeDirectory::open(running.directory.file("staged"));
  REQUIRE(staged);
  std::optional<os::LockFile> other = os::LockFile::acquire(staged->lock()).value();
  REQUIRE(os::replace_file(staged->ready(), "of the other one"));
  std::filesystem::rename(running.options.runtime_dir, away);
  std::filesystem::rename(staged->path(), running.options.runtime_dir);

  REQUIRE(comes_true([&] {
    const auto log = os::read_file(away + "/ckptd.log", 1 << 20);
    return log && log->find("another process holds it") != std::string::npos;
  }));
  CHECK_FALSE(std::filesystem::exists(running.path("ckptd.sock")));
  SECTION("when that ends") {
    other.reset();
    REQUIRE(comes_true([&] { return std::filesystem::exists(running.path("ckptd.log")); }));
    CHECK(os::LockFile::is_held(running.path("ckptd.lock")));
    CHECK(parse_ready(os::read_file(running.path("ckptd.json"), 4096).value()));
  }
  SECTION("when this one ends, it leaves that one's files") {
    REQUIRE(::kill(::getpid(), SIGTERM) == 0);
    running.join();
    CHECK(os::read_file(running.path("ckptd.json"), 4096).value() == "of the other one");
  }
}

TEST_CASE("daemon: one that has lost the lock to another one gives it the socket, too",
          "[unit][daemon]") {
  const Running running;
  REQUIRE(std::filesystem::remove(running.path("ckptd.lock")));
  std::optional<os::LockFile> other = os::LockFile::acquire(running.path("ckptd.lock")).value();
  REQUIRE(comes_true([&] { return !std::filesystem::exists(running.path("ckptd.sock")); }));
  other.reset();
  REQUIRE(comes_true([&] { return std::filesystem::exists(running.path("ckptd.sock")); }));
}

TEST_CASE("daemon: another version hears which one this is", "[unit][daemon]") {
  const Running running;
  Caller caller(running);
  control::Hello newer = control::our_hello();
  newer.protocol += 1;
  REQUIRE(caller.send(newer));
  const auto hello = caller.receive();
  REQUIRE(hello);
  CHECK(std::get<control::Hello>(*hello).protocol == control::our_hello().protocol);
  CHECK(caller.receive().error().code() == Errc::unavailable);  // And that is all.
}

TEST_CASE("daemon: nonsense ends the connection and nothing else", "[unit][daemon]") {
  const Running running;
  for (const control::Message& first :
       {control::Message(control::Goodbye{}), control::Message(control::Attach{})}) {
    Caller caller(running);
    REQUIRE(caller.send(first));
    REQUIRE(caller.receive());  // Its hello, which comes anyway.
    CHECK_FALSE(caller.receive());
  }
  Caller unknown(running);
  REQUIRE(test::run_task(unknown.context,
                         unknown.connection.send(os::LocalMessage(999), unknown.soon())));
  REQUIRE(unknown.receive());
  CHECK_FALSE(unknown.receive());
  CHECK(Caller(running).ask(control::AskStatus{}).result);
}

TEST_CASE("daemon: an attach whose pid was given to another process is refused", "[unit][daemon]") {
  const Running running;
  Caller caller(running);
  REQUIRE(caller.send(control::our_hello()));
  REQUIRE(caller.receive());
  control::Attach attach;
  attach.start_time = 1;
  attach.job = "gpt2";
  attach.node = "A";
  attach.nodes = {{"A", "A", ""}};
  REQUIRE(caller.send(attach));
  const auto answer = std::get<control::AttachAnswer>(caller.receive().value());
  REQUIRE_FALSE(answer.result);
  CHECK(answer.result.error().code() == Errc::not_found);
}

TEST_CASE("daemon: a trainer that does not read costs little, is let go, and nobody else waits",
          "[unit][daemon]") {
  const Running running;
  Caller deaf(running);
  REQUIRE(deaf.send(control::our_hello()));
  REQUIRE(deaf.receive());
  control::Attach attach;
  attach.start_time = os::identify_process(::getpid()).value().start_ticks;
  attach.job = "gpt2";
  attach.node = "A";
  attach.nodes = {{"A", "A", ""}};
  REQUIRE(deaf.send(attach));
  REQUIRE(std::get<control::AttachAnswer>(deaf.receive().value()).result);
  REQUIRE(deaf.send(control::StartFresh{}));
  REQUIRE(std::holds_alternative<control::Begun>(deaf.receive().value()));
  // Each is answered. The socket's buffer and the session's queue hold far fewer than this.
  constexpr int far_more = 64 * static_cast<int>(TrainerSession::outgoing_max);
  Status sent;
  for (int i = 0; sent && i < far_more; ++i) sent = deaf.send(control::StartFresh{});
  REQUIRE_FALSE(sent);
  CHECK(sent.error().code() == Errc::unavailable);
  CHECK(Caller(running).ask(control::AskStatus{}).result);
}

TEST_CASE("daemon: dropping or recovering a job that it has not says so", "[unit][daemon]") {
  const Running running;
  const auto drop = Caller(running).ask(control::Drop{"gpt2"});
  REQUIRE_FALSE(drop.result);
  CHECK(drop.result.error().code() == Errc::not_found);
  const auto recover = Caller(running).ask(control::AskRecover{"gpt2"});
  CHECK(nlohmann::json::parse(recover.json).contains("error"));
}

TEST_CASE("daemon: with nothing to keep it ends after the idle limit", "[unit][daemon]") {
  const test::TemporaryDirectory directory;
  DaemonOptions options;
  options.runtime_dir = directory.file("run");
  options.memory_budget = 64 << 20;
  options.idle_limit = std::chrono::milliseconds(50);
  auto daemon = Daemon::open(options);
  REQUIRE(daemon);
  CHECK((*daemon)->run());
}

}  // namespace ckpt::daemon
