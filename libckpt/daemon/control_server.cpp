#include "daemon/control_server.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "base/spawn.hpp"
#include "wire/control_codec.hpp"

namespace ckpt::daemon {

namespace control = wire::control;

namespace {

constexpr Duration hello_time = std::chrono::seconds(10);
constexpr Duration answer_time = std::chrono::seconds(30);
// A question for the status waits so long for storage.
constexpr Duration look_time = std::chrono::seconds(3);
// A tool that reads a step may write slowly, or stand still for a while.
constexpr Duration reading_time = std::chrono::minutes(10);
// The kernel needs some time to take apart a process with much pinned memory.
constexpr Duration kill_time = std::chrono::seconds(30);
constexpr Duration accept_pause = std::chrono::milliseconds(100);

}  // namespace

ControlServer::ControlServer(const asio::any_io_executor& executor, Clock& clock,
                             node::Engine& engine, DaemonControl& control)
    : executor_(executor),
      clock_(clock),
      engine_(engine),
      control_(control),
      secret_files_(1, os::DiskPriority::normal, "ckptd-secret"),
      detached_(clock) {}

ControlServer::~ControlServer() = default;

Status ControlServer::start(const std::string& socket) {
  CKPT_TRY(auto listener, os::LocalListener::open(executor_, clock_, socket));
  socket_ = socket;
  listener_.emplace(std::move(listener));
  run_detached(executor_, accept_all());
  return {};
}

Status ControlServer::start_again() {
  CKPT_TRY(auto listener, os::LocalListener::open(executor_, clock_, socket_));
  // accept_all() finds the old one closed, and continues with this one.
  listener_.emplace(std::move(listener));
  return {};
}

Task<void> ControlServer::stop(Time deadline) {
  gate_.stop();
  if (listener_) listener_->close();
  for (const SharedConnection& connection : open_) connection->close();
  for (const SharedSession& session : sessions_) session->close_connection();
  detached_.close();
  CKPT_CO_CHECK(co_await gate_.drained(clock_, deadline));
  co_return Status();
}

DetachedTask ControlServer::accept_all() {
  const StopGate::Pass pass = gate_.enter();
  LogLimit complaint(60.0);
  while (!gate_.is_stopping()) {
    auto connection = co_await listener_->accept(no_deadline);
    if (connection && connections_.in_flight() < connections_max) {
      auto shared = std::make_shared<os::LocalConnection>(std::move(*connection));
      run_detached(executor_, serve(std::move(shared)));
      continue;
    }
    if (gate_.is_stopping()) co_return;
    const bool is_replaced = !connection && connection.error().code() == Errc::cancelled;
    if (!is_replaced && complaint.may_speak()) {
      log_warning("cannot take another connection: {}",
                  connection ? "too many are open" : connection.error().message());
    }
    const Time again = clock_.after(accept_pause);
    auto slept = co_await sleep_until(clock_, again);
    if (!slept) co_return;
  }
}

DetachedTask ControlServer::serve(SharedConnection connection) {
  const StopGate::Pass pass = gate_.enter();
  const StopGate::Pass counted = connections_.enter();
  open_.push_back(connection);
  auto ended = co_await greet(connection);
  // A connection normally just ends.
  if (!ended && ended.error().code() != Errc::unavailable &&
      ended.error().code() != Errc::cancelled) {
    log_warning("pid {}: {}", connection->peer().pid, ended.error().message());
  }
  connection->close();
  open_.remove(connection);
}

Task<void> ControlServer::send(SharedConnection connection, control::Message message,
                               Time deadline) {
  CKPT_CO_TRY(auto encoded, control::encode(message));
  CKPT_CO_CHECK(co_await connection->send(std::move(encoded), deadline));
  co_return Status();
}

Task<control::Message> ControlServer::receive(SharedConnection connection, Time deadline) {
  CKPT_CO_TRY(auto message, co_await connection->receive(deadline));
  co_return control::decode(message);
}

Task<void> ControlServer::greet(SharedConnection connection) {
  const Time deadline = clock_.after(hello_time);
  control::Message hello = control::our_hello();
  CKPT_CO_CHECK(co_await send(connection, std::move(hello), deadline));
  CKPT_CO_TRY(const auto first, co_await receive(connection, deadline));
  const auto* theirs = std::get_if<control::Hello>(&first);
  if (theirs == nullptr) co_return fail(Errc::corruption, "its first message was no hello");
  // The other side has our hello, and tells its user what to do.
  CKPT_CO_CHECK(control::check_hello(*theirs, "the other side"));

  CKPT_CO_TRY(auto question, co_await receive(connection, deadline));
  if (auto* attach = std::get_if<control::Attach>(&question)) {
    CKPT_CO_CHECK(co_await serve_trainer(connection, std::move(*attach)));
    co_return Status();
  }
  const auto lender = std::make_shared<StepLender>(engine_);
  while (true) {
    const bool is_reading = StepLender::is_for(question);
    Status answered;
    if (is_reading) answered = co_await lend(connection, lender, std::move(question));
    if (!is_reading) answered = co_await answer(connection, std::move(question));
    CKPT_CO_CHECK(std::move(answered));
    const Time next = clock_.after(is_reading ? reading_time : answer_time);
    CKPT_CO_TRY(question, co_await receive(connection, next));
  }
}

// --- Trainers ---

Task<void> ControlServer::serve_trainer(SharedConnection connection, control::Attach request) {
  CKPT_POINT("attach.accept");
  auto attached = co_await attach(connection, std::move(request));
  if (!attached) {
    log_warning("pid {} may not attach: {}", connection->peer().pid, attached.error().message());
    control::AttachAnswer refusal;
    refusal.result = fail(std::move(attached).error());
    control::Message message = std::move(refusal);
    const Time deadline = clock_.after(answer_time);
    CKPT_CO_CHECK(co_await send(connection, std::move(message), deadline));
    co_return Status();
  }
  const SharedSession session = *attached;
  run_detached(executor_, TrainerSession::send_all(session));
  while (true) {
    auto message = co_await receive(connection, no_deadline);
    if (!message) {
      session->close_connection();
      co_return fail(std::move(message).error());
    }
    if (std::holds_alternative<control::Goodbye>(*message)) {
      detach(session, "said goodbye");
      session->close_connection();
      co_return Status();
    }
    const auto name = control::name_of(*message);
    const Status status = carry_out(*session, std::move(*message));
    if (!status) log_warning("{} {}: {}", session->name(), name, status.error().message());
  }
}

Status ControlServer::carry_out(const TrainerSession& session, control::Message message) {
  const auto name = control::name_of(message);
  auto call = control::to_call(std::move(message));
  if (!call) return fail(Errc::invalid_argument, fmt::format("{} is no call of a trainer", name));
  CKPT_ASSERT(session.session().has_value());
  return engine_.call(*session.session(), std::move(*call));
}

Task<ControlServer::SharedSession> ControlServer::attach(SharedConnection connection,
                                                         control::Attach attach) {
  const os::LocalPeer peer = connection->peer();
  if (peer.pid <= 0) {
    co_return fail(Errc::unsupported,
                   "attach: this daemon cannot see the trainer's process (another pid namespace), "
                   "so it could not detect its death; run both in one container");
  }
  CKPT_CO_TRY(auto process, os::open_process({peer.pid, attach.start_time}));
  node::AttachRequest request{attach, {}, peer.pid};
  if (!attach.secret_file.empty()) {
    std::function<Result<std::string>()> read_secret = [file = attach.secret_file] {
      return node::read_secret(file);
    };
    CKPT_CO_TRY(request.secret, co_await secret_files_.run(read_secret));
  }
  const TrainerSession::Identity identity{attach.job, attach.rank, peer.pid};
  // First, so that a newcomer that is refused does not cost the older one its life.
  CKPT_CO_CHECK(engine_.check_attach(request));
  CKPT_CO_TRY(request.killed, co_await kill_stopped(identity));

  auto session = std::make_shared<TrainerSession>(clock_, connection, identity, std::move(process));
  CKPT_CO_TRY(const auto attached, co_await engine_.attach(std::move(request), *session));
  session->attached(attached);
  sessions_.push_back(session);
  share_cores();
  const std::weak_ptr<TrainerSession> watched = session;
  std::function<void()> gone = [this, watched] {
    if (const auto dead = watched.lock()) detach(dead, "its process has ended");
  };
  auto watching = session->watch(executor_, std::move(gone));
  if (!watching) {
    detach(session, "its process cannot be watched");
    co_return fail(std::move(watching).error());
  }
  log_info("{} attached", session->name());
  CKPT_POINT("attach.done");
  co_return session;
}

Task<pid_t> ControlServer::kill_stopped(TrainerSession::Identity newcomer) {
  const auto is_in_the_way = [&](const SharedSession& session) {
    const auto& older = session->identity();
    if (older.job != newcomer.job || older.rank != newcomer.rank) return false;
    const auto is_stopped = os::is_stopped(older.pid);
    return older.pid != newcomer.pid && is_stopped && *is_stopped;
  };
  const Time deadline = clock_.after(kill_time);
  pid_t killed = 0;
  while (true) {
    const auto found = std::find_if(sessions_.begin(), sessions_.end(), is_in_the_way);
    if (found == sessions_.end()) co_return killed;
    const SharedSession stopped = *found;
    log_warning("{} is stopped, and pid {} takes its place: killed", stopped->name(), newcomer.pid);
    CKPT_CO_CHECK(os::kill_process(stopped->process(), SIGKILL));
    killed = stopped->identity().pid;
    auto woken = co_await detached_.wait_until(deadline);
    if (!woken) co_return fail(std::move(woken).error());
    if (!*woken) {
      co_return fail(
          Errc::unavailable,
          fmt::format("attach: {} was killed, but its process does not end", stopped->name()));
    }
  }
  co_return killed;
}

void ControlServer::detach(const SharedSession& session, const char* why) {
  const auto found = std::find(sessions_.begin(), sessions_.end(), session);
  if (found == sessions_.end()) return;
  const SharedSession held = *found;
  sessions_.erase(found);
  CKPT_POINT("detach.before");
  log_info("{} {}", held->name(), why);
  if (const auto id = held->session()) engine_.detach(*id);
  share_cores();
  // The engine calls it no more; queued messages may still be sent.
  detached_.notify_all();
}

void ControlServer::share_cores() {
  std::vector<pid_t> trainers;
  for (const SharedSession& session : sessions_) trainers.push_back(session->identity().pid);
  cores_.settle(trainers);
}

// --- The command line ---

Task<void> ControlServer::answer(SharedConnection connection, control::Message question) {
  CKPT_CO_TRY(auto given, co_await answer_to(std::move(question)));
  control::Message message = std::move(given);
  const Time deadline = clock_.after(answer_time);
  CKPT_CO_CHECK(co_await send(connection, std::move(message), deadline));
  co_return Status();
}

Task<void> ControlServer::lend(SharedConnection connection, std::shared_ptr<StepLender> lender,
                               control::Message question) {
  auto answers = co_await lender->answer(std::move(question));
  if (!answers) co_return fail(std::move(answers).error());
  for (control::Message& message : *answers) {
    const Time deadline = clock_.after(reading_time);
    CKPT_CO_CHECK(co_await send(connection, std::move(message), deadline));
  }
  co_return Status();
}

Task<control::Answer> ControlServer::answer_to(control::Message question) {
  control::Answer answer;
  const bool tells_of_storage = std::holds_alternative<control::AskStatus>(question) ||
                                std::holds_alternative<control::AskRecover>(question);
  if (tells_of_storage) {
    const Time deadline = clock_.after(look_time);
    (void)co_await engine_.look_at_storage(deadline);  // Without it, the answer says what is known.
  }
  if (std::holds_alternative<control::AskStatus>(question)) {
    answer.json = control_.status_json();
  } else if (const auto* recover = std::get_if<control::AskRecover>(&question)) {
    answer.json = engine_.recover_json(recover->job);
  } else if (const auto* drop = std::get_if<control::Drop>(&question)) {
    answer.result = engine_.drop(drop->job);
  } else if (const auto* stop = std::get_if<control::Stop>(&question)) {
    auto stopped = co_await control_.stop(stop->deadline, stop->flush);
    if (stopped) answer.json = std::move(*stopped);
    if (!stopped) answer.result = fail(std::move(stopped).error());
  } else {
    co_return fail(Errc::corruption, fmt::format("{} before attach", control::name_of(question)));
  }
  co_return answer;
}

}  // namespace ckpt::daemon
