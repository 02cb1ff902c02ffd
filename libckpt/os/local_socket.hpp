// LocalSocket: messages with descriptors between processes of one user on one machine.
//
//   header, 16 bytes, little-endian: magic u32 | version u16 | kind u16 | body bytes u32 | CRC-32
//   of the body u32; then the body. Descriptors travel with the first byte of the header.
//
// Threads:   one executor for each object. One receive at a time; sends queue up, in order.
// Lifetime:  destroy it before its context. Destroying or close() ends what is pending with
//            cancelled. An error in mid-message closes the connection: the stream is then useless.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/units.hpp"
#include "os/fd.hpp"

namespace ckpt::os {

inline constexpr std::size_t local_body_bytes_max = 64 * MiB;
inline constexpr std::size_t local_descriptors_max = 253;  // SCM_MAX_FD of the kernel.
inline constexpr std::size_t local_senders_max = 64;       // Messages queued on one connection.

// Not an aggregate on purpose: see base/task.hpp.
class LocalMessage {
 public:
  LocalMessage() = default;
  explicit LocalMessage(std::uint16_t the_kind, std::vector<std::byte> the_body = {})
      : kind(the_kind), body(std::move(the_body)) {}

  std::uint16_t kind = 0;
  std::vector<std::byte> body;
  std::vector<Fd> descriptors;
};

// As the kernel knew the other side when the connection was made.
struct LocalPeer {
  pid_t pid = 0;
  uid_t uid = 0;
};

class LocalConnection {
 public:
  LocalConnection() = default;  // Closed.
  LocalConnection(LocalConnection&&) noexcept = default;
  LocalConnection& operator=(LocalConnection&& other) noexcept;
  ~LocalConnection();

  // Between messages a deadline leaves the connection open: is_open() tells.
  // Errors: unavailable (deadline, or the other side is gone), cancelled (closed by us),
  // corruption, version_mismatch, exhausted (a body over the limit), io.
  Task<LocalMessage> receive(Time deadline);
  // Success means handed to the kernel, not received. Our descriptors are closed afterwards.
  // Errors: unavailable, cancelled, exhausted (too many senders), invalid_argument (too large), io.
  Task<void> send(LocalMessage message, Time deadline);

  void close();
  bool is_open() const;
  LocalPeer peer() const;

 private:
  friend class LocalListener;
  friend Task<LocalConnection> connect_local(Clock& clock, std::string path, Time deadline);
  class State;
  explicit LocalConnection(std::shared_ptr<State> state);
  static Result<LocalConnection> adopt(const asio::any_io_executor& executor, Clock& clock, Fd fd);

  std::shared_ptr<State> state_;
};

class LocalListener {
 public:
  // Makes the socket `path`, mode 0600. Its directory must be ours alone (0700, no symbolic link).
  // A socket that nobody listens on is replaced; the caller's own lock decides races.
  // Errors: unavailable (somebody listens there), invalid_argument (the directory, or a file that
  // is no socket), io.
  static Result<LocalListener> open(const asio::any_io_executor& executor, Clock& clock,
                                    const std::string& path);

  LocalListener(LocalListener&&) noexcept = default;
  LocalListener& operator=(LocalListener&&) = delete;
  ~LocalListener();  // Removes the socket, if it is still ours.

  // The next process of our own user; others are closed at once and logged.
  // Errors: unavailable (deadline), cancelled (closed), exhausted (descriptors: wait, then go on).
  Task<LocalConnection> accept(Time deadline);
  void close();

 private:
  class State;
  explicit LocalListener(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// Connects, and makes sure that the other side is a process of our own user.
// Errors: not_found (no socket), unavailable (nobody listens, or the deadline), invalid_argument
// (somebody else's socket), io.
Task<LocalConnection> connect_local(Clock& clock, std::string path, Time deadline);

}  // namespace ckpt::os
