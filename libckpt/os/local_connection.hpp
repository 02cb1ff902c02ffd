// LocalConnection: messages with descriptors between two processes of one user on one machine.
//
// local_stream.hpp has the bytes of a message.
//
// Threads:   one executor. One receive at a time; sends queue up, in order.
// Lifetime: destroy it before its context and its clock. Destroying or close() ends pending calls
//           with cancelled. An error in mid-message closes it: the stream is then useless.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/clock.hpp"
#include "os/local_message.hpp"

namespace ckpt::os {

inline constexpr std::size_t local_senders_max = 64;  // Messages queued on one connection.

// The other side's process, as the kernel recorded it when the connection was made.
struct LocalPeer {
  pid_t pid = 0;
  uid_t uid = 0;
};

class LocalConnection {
 public:
  LocalConnection() = default;  // Closed.
  // Takes ownership of a connected, non-blocking stream socket. Errors: io.
  static Result<LocalConnection> adopt(const asio::any_io_executor& executor, Clock& clock, Fd fd);
  LocalConnection(LocalConnection&&) noexcept = default;
  LocalConnection& operator=(LocalConnection&& other) noexcept;
  ~LocalConnection();

  // A deadline between messages leaves the connection open: check is_open(). Errors: unavailable
  // (deadline, or the other side is gone), cancelled (closed by us), corruption, version_mismatch,
  // exhausted (a body over the limit, or too few descriptors here), io.
  Task<LocalMessage> receive(Time deadline);
  // Success means that the kernel has the message, not that it was received. Its descriptors are
  // then closed here. Messages that the other side sent before it left can still be received.
  // Errors: unavailable, cancelled, exhausted (too many senders), invalid_argument (too large), io.
  Task<void> send(LocalMessage message, Time deadline);

  void close();
  bool is_open() const;
  LocalPeer peer() const;
  // A pidfd of the other side's process. Errors: not_found (it is gone), exhausted, io.
  Result<Fd> peer_process() const;

 private:
  class State;
  explicit LocalConnection(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

}  // namespace ckpt::os
