// How a question is asked:
//
//   1. Connect to the socket, without starting anything.
//  2. Hellos go both ways: versions are compared before anything else is sent.
//  3. The question is sent, and its answer received.
#include "cli/daemon_talk.hpp"

#include <fmt/format.h>

#include "base/signal.hpp"
#include "base/spawn.hpp"
#include "daemon/ready_file.hpp"
#include "os/local_socket.hpp"
#include "os/process.hpp"
#include "os/small_file.hpp"
#include "wire/control_codec.hpp"

namespace ckpt::cli {

namespace control = wire::control;

namespace {

constexpr Duration hello_time = std::chrono::seconds(5);
// A daemon makes a removed socket again within a second, and starts about as fast.
constexpr Duration socket_time = std::chrono::seconds(2);
constexpr Duration socket_pause = std::chrono::milliseconds(50);
constexpr Duration slow_after = std::chrono::seconds(2);
// For a process that has flushed: connections end, and memory is freed.
constexpr Duration end_time = std::chrono::seconds(30);

Error no_daemon(const std::string& directory) {
  return Error(Errc::not_found,
               fmt::format("no daemon runs in {}. A trainer starts one by itself, `ckptd "
                           "--runtime-dir {}` starts one by hand; --runtime-dir or "
                           "LIBCKPT_RUNTIME_DIR names another directory",
                           directory, directory));
}

// The lock is held, but nobody listens.
Error unreachable(const os::RuntimeDirectory& directory) {
  std::string who = "a daemon";
  if (const auto text = os::read_file(directory.ready(), 64 * 1024)) {
    if (const auto ready = daemon::parse_ready(*text))
      who += fmt::format(", {},", os::describe_process(ready->process.pid));
  }
  return Error(Errc::unavailable,
               fmt::format("{} holds {}, and does not listen on {}: it hangs, or starts, or ends; "
                           "its log is {}",
                           who, directory.lock(), directory.socket(), directory.log()));
}

Task<control::Message> receive(os::LocalConnection& connection, Time deadline) {
  CKPT_CO_TRY(auto message, co_await connection.receive(deadline));
  co_return control::decode(message);
}

Task<void> send(os::LocalConnection& connection, control::Message message, Time deadline) {
  CKPT_CO_TRY(auto encoded, control::encode(message));
  CKPT_CO_CHECK(co_await connection.send(std::move(encoded), deadline));
  co_return Status();
}

}  // namespace

// Steps 1 and 2.
Task<os::LocalConnection> connect_daemon(Clock& clock, os::RuntimeDirectory directory) {
  const Time deadline = clock.after(hello_time), socket_by = clock.after(socket_time);
  auto connected = co_await os::connect_local(clock, directory.socket(), deadline);
  while (!connected) {
    const Error& error = connected.error();
    const bool is_none =
        error.code() == Errc::not_found || error.cause() == std::errc::connection_refused;
    if (!is_none) co_return fail(std::move(connected).error());
    if (!os::LockFile::is_held(directory.lock())) co_return fail(no_daemon(directory.path()));
    if (clock.now() >= socket_by) co_return fail(unreachable(directory));
    const Time again = clock.after(socket_pause);
    CKPT_CO_CHECK(co_await sleep_until(clock, again));
    auto next = co_await os::connect_local(clock, directory.socket(), deadline);
    connected = std::move(next);
  }
  os::LocalConnection connection = std::move(connected).value();
  control::Message ours = control::our_hello();
  CKPT_CO_CHECK(co_await send(connection, std::move(ours), deadline));
  auto first = co_await receive(connection, deadline);
  if (!first) {
    const std::string doing =
        fmt::format("greet the daemon in {}, {}, its log is {}", directory.path(),
                    os::describe_process(connection.peer().pid), directory.log());
    co_return fail(std::move(first).error().context(doing));
  }
  const auto* hello = std::get_if<control::Hello>(&*first);
  if (hello == nullptr) co_return fail(Errc::corruption, "the daemon's first message was no hello");
  CKPT_CO_CHECK(control::check_hello(*hello, "the daemon"));
  co_return std::move(connection);
}

namespace {

// Step 3.
Task<control::Answer> ask(Clock& clock, os::LocalConnection& connection, control::Message question,
                          Duration time) {
  const std::string what(control::name_of(question));
  const Time deadline = clock.after(time);
  CKPT_CO_CHECK(co_await send(connection, std::move(question), deadline));
  auto message = co_await receive(connection, deadline);
  if (!message) co_return fail(std::move(message).error().context("ask the daemon: " + what));
  auto* answer = std::get_if<control::Answer>(&*message);
  if (answer == nullptr) {
    co_return fail(Errc::corruption, fmt::format("ask the daemon: {}: it answered with {}", what,
                                                 control::name_of(*message)));
  }
  co_return std::move(*answer);
}

Task<control::Answer> connect_and_ask(Clock& clock, os::RuntimeDirectory directory,
                                      control::Message question, Duration time) {
  CKPT_CO_TRY(auto connection, co_await connect_daemon(clock, directory));
  CKPT_CO_TRY(auto answer, co_await ask(clock, connection, std::move(question), time));
  co_return std::move(answer);
}

Task<void> wait_gone(Clock& clock, os::Fd process) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  Signal signal(clock);
  bool is_gone = false;
  std::function<void()> gone = [&] {
    is_gone = true;
    signal.notify_all();
  };
  CKPT_CO_TRY(const auto watch, os::ProcessWatch::start(executor, process, std::move(gone)));
  const Time deadline = clock.after(end_time);
  while (!is_gone) {
    CKPT_CO_TRY(const bool was_woken, co_await signal.wait_until(deadline));
    if (!was_woken)
      co_return fail(Errc::unavailable, "stop the daemon: it has flushed, but does not end");
  }
  co_return Status();
}

// A flush may take minutes: one line says so to a waiting person.
DetachedTask tell_when_slow(Clock& clock, Duration deadline, std::weak_ptr<void> waits) {
  const Time told_at = clock.after(slow_after);
  auto slept = co_await sleep_until(clock, told_at);
  if (!slept || waits.expired()) co_return;
  fmt::print(stderr,
             "The daemon still flushes steps that only memory has, for {} s at most. `ckpt status` "
             "shows how far it is, `ckpt stop --no-flush` ends it without.\n",
             std::chrono::duration_cast<std::chrono::seconds>(deadline).count());
}

Task<control::Answer> stop(Clock& clock, os::RuntimeDirectory directory, Duration deadline,
                           bool flush) {
  CKPT_CO_TRY(auto connection, co_await connect_daemon(clock, directory));
  CKPT_CO_TRY(auto process, connection.peer_process());
  control::Stop question;
  question.deadline = std::chrono::duration_cast<std::chrono::milliseconds>(deadline);
  question.flush = flush;
  control::Message message = question;
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  auto waits = std::make_shared<bool>();
  if (flush) run_detached(executor, tell_when_slow(clock, deadline, waits));
  CKPT_CO_TRY(auto answer,
              co_await ask(clock, connection, std::move(message), deadline + end_time));
  waits.reset();
  if (!answer.result) co_return std::move(answer);
  CKPT_CO_CHECK(co_await wait_gone(clock, std::move(process)));
  co_return std::move(answer);
}

}  // namespace

Result<os::RuntimeDirectory> daemon_directory(const std::string& runtime_dir) {
  auto directory = os::RuntimeDirectory::find(runtime_dir);
  if (directory || directory.error().code() != Errc::not_found) return directory;
  return fail(Errc::not_found, directory.error().text() +
                                   ", so no daemon runs there. --runtime-dir or "
                                   "LIBCKPT_RUNTIME_DIR names another one");
}

Result<control::Answer> ask_daemon(const std::string& runtime_dir, control::Message question,
                                   Duration time) {
  CKPT_TRY(const auto directory, daemon_directory(runtime_dir));
  Workplace workplace;
  CKPT_TRY(auto answer,
           workplace.run(connect_and_ask(workplace.clock(), directory, std::move(question), time)));
  if (!answer.result) return fail(std::move(answer.result).error());
  return answer;
}

Result<control::Answer> stop_daemon(const os::RuntimeDirectory& directory, Duration deadline,
                                    bool flush) {
  Workplace workplace;
  return workplace.run(stop(workplace.clock(), directory, deadline, flush));
}

Result<Json> parse_answer(const control::Answer& answer) {
  auto json = Json::parse(answer.json, nullptr, false);
  if (!json.is_object())
    return fail(Errc::corruption, "read the daemon's answer: it is no JSON object");
  return json;
}

}  // namespace ckpt::cli
