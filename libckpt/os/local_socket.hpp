// LocalSocket: a meeting point for one user's processes: a socket in a directory only they can
// enter.
//
// Threads:   one executor for each object.
// Lifetime:  destroy it before its context and its clock.
#pragma once

#include <memory>
#include <string>

#include "os/local_connection.hpp"

namespace ckpt::os {

class LocalListener {
 public:
  // Creates the socket `path`, mode 0600. Its directory must be ours alone (0700, no symbolic
  // link). A socket that nobody listens on is replaced; the caller's own lock decides races.
  // Errors: unavailable (another process listens there), invalid_argument (the directory, or a file
  // that is no socket), io.
  static Result<LocalListener> open(const asio::any_io_executor& executor, Clock& clock,
                                    const std::string& path);

  LocalListener(LocalListener&&) noexcept = default;
  LocalListener& operator=(LocalListener&&) = delete;
  ~LocalListener();  // Removes the socket if it is still ours.

  // Returns the next process of our own user; connections of other users are closed and logged.
  // Errors: unavailable (deadline), cancelled (closed), exhausted (descriptors: wait, then go on).
  Task<LocalConnection> accept(Time deadline);
  // True while the path leads to this socket: nobody has removed or replaced it.
  bool is_reachable() const;
  void close();

 private:
  class State;
  explicit LocalListener(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// Connects, and checks that the other side is a process of our own user. Errors: not_found (no
// socket), unavailable (nobody listens, or the deadline), invalid_argument (another user's socket),
// io.
Task<LocalConnection> connect_local(Clock& clock, std::string path, Time deadline);

}  // namespace ckpt::os
