#include "os/local_connection.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <deque>

#include "base/assert.hpp"
#include "base/signal.hpp"
#include "os/local_stream.hpp"
#include "os/process.hpp"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // From Linux 6.5; older headers lack it.
#endif

namespace ckpt::os {

class LocalConnection::State {
 public:
  State(Clock& clock, std::shared_ptr<Readiness> the_socket, LocalPeer the_peer)
      : socket(std::move(the_socket)), peer(the_peer), turn_(clock) {}

  void close() {
    socket->close();
    turn_.close();
  }
  // A deadline between messages does no harm; any other error makes the stream useless.
  void judge(const Error& error, bool is_between_messages) {
    if (!is_between_messages || error.cause() != std::errc::timed_out) close();
  }

  static Task<LocalMessage> receive(std::shared_ptr<State> self, Time deadline);
  static Task<void> send(std::shared_ptr<State> self, LocalMessage message, Time deadline);

  std::shared_ptr<Readiness> socket;
  LocalPeer peer;

 private:
  class Receiving;
  class Turn;

  bool is_receiving_ = false;
  std::deque<const Turn*> senders_;  // The first one writes.
  Signal turn_;
};

// A sender's place in the queue, released on every way out of its frame.
class LocalConnection::State::Turn {
 public:
  explicit Turn(State& state) : state_(state) { state_.senders_.push_back(this); }
  ~Turn() {
    std::erase(state_.senders_, this);
    state_.turn_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  bool is_first() const { return state_.senders_.front() == this; }

 private:
  State& state_;
};

class LocalConnection::State::Receiving {
 public:
  explicit Receiving(State& state) : state_(state) {
    CKPT_ASSERT(!state_.is_receiving_);
    state_.is_receiving_ = true;
  }
  ~Receiving() { state_.is_receiving_ = false; }
  Receiving(const Receiving&) = delete;
  Receiving& operator=(const Receiving&) = delete;

 private:
  State& state_;
};

Task<LocalMessage> LocalConnection::State::receive(std::shared_ptr<State> self, Time deadline) {
  const Receiving receiving(*self);
  if (!self->socket->is_open()) {
    co_return fail(Errc::cancelled, "receive a local message: the connection is closed");
  }
  const auto is_between_messages = std::make_shared<bool>(true);
  auto message = co_await read_local_message(self->socket, deadline, is_between_messages);
  if (!message) self->judge(message.error(), *is_between_messages);
  co_return message;
}

Task<void> LocalConnection::State::send(std::shared_ptr<State> self, LocalMessage message,
                                        Time deadline) {
  if (!self->socket->is_open()) {
    co_return fail(Errc::cancelled, "send a local message: the connection is closed");
  }
  if (message.body.size() > local_body_bytes_max ||
      message.descriptors.size() > local_descriptors_max) {
    co_return fail(Errc::invalid_argument,
                   fmt::format("send a local message of {} bytes with {} descriptors: at most {} "
                               "and {} are allowed",
                               message.body.size(), message.descriptors.size(),
                               local_body_bytes_max, local_descriptors_max));
  }
  if (self->senders_.size() >= local_senders_max) {
    co_return fail(Errc::exhausted,
                   fmt::format("send a local message: {} are waiting", local_senders_max));
  }
  const Turn turn(*self);
  while (!turn.is_first()) {
    CKPT_CO_TRY(const bool is_notified, co_await self->turn_.wait_until(deadline));
    if (!is_notified && !turn.is_first()) {
      co_return fail(Errc::unavailable, "send a local message: the deadline passed behind others",
                     std::make_error_code(std::errc::timed_out));
    }
  }
  const auto is_between_messages = std::make_shared<bool>(true);
  auto sent =
      co_await write_local_message(self->socket, std::move(message), deadline, is_between_messages);
  // Messages that the other side sent before it left can still be received.
  const bool is_gone = !sent && sent.error().cause() == std::errc::broken_pipe;
  if (!sent && !is_gone) self->judge(sent.error(), *is_between_messages);
  co_return sent;
}

Result<LocalConnection> LocalConnection::adopt(const asio::any_io_executor& executor, Clock& clock,
                                               Fd fd) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (::getsockopt(fd.number(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    return fail_system("read the peer of a local socket");
  }
  CKPT_TRY(auto socket, Readiness::open(executor, clock, std::move(fd)));
  const LocalPeer peer{credentials.pid, credentials.uid};
  return LocalConnection(std::make_shared<State>(clock, std::move(socket), peer));
}

LocalConnection::LocalConnection(std::shared_ptr<State> state) : state_(std::move(state)) {}

LocalConnection& LocalConnection::operator=(LocalConnection&& other) noexcept {
  if (this == &other) return *this;
  close();
  state_ = std::move(other.state_);
  return *this;
}

LocalConnection::~LocalConnection() {
  close();
}

Task<LocalMessage> LocalConnection::receive(Time deadline) {
  CKPT_ASSERT(state_ != nullptr);
  return State::receive(state_, deadline);
}

Task<void> LocalConnection::send(LocalMessage message, Time deadline) {
  CKPT_ASSERT(state_ != nullptr);
  return State::send(state_, std::move(message), deadline);
}

void LocalConnection::close() {
  if (state_ != nullptr) state_->close();
}

bool LocalConnection::is_open() const {
  return state_ != nullptr && state_->socket->is_open();
}

LocalPeer LocalConnection::peer() const {
  CKPT_ASSERT(state_ != nullptr);
  return state_->peer;
}

Result<Fd> LocalConnection::peer_process() const {
  CKPT_ASSERT(state_ != nullptr);
  int number = -1;
  socklen_t bytes = sizeof number;
  const int socket = state_->socket->number();
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &number, &bytes) == 0) return Fd(number);
  // An older kernel: by number, which in theory may have been reused meanwhile.
  return open_process(state_->peer.pid);
}

}  // namespace ckpt::os
