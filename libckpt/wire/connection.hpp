// Connection: the seam to the network: ordered streams of bytes between daemons.
//
// TCP implements it for real; the simulator adds delays, short reads, resets and lost peers.
//
// Threads:   one executor. One read and one write may be in flight at a time, on each connection.
// Lifetime:  held by shared_ptr in the coroutines that use it; close() ends what is in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/clock.hpp"
#include "base/task.hpp"
#include "os/file_span.hpp"

namespace ckpt::wire {

class Connection {
 public:
  virtual ~Connection() = default;

  // Move all bytes, or return an error: unavailable (deadline, peer gone), cancelled (closed by
  // us). An error closes the connection, because its place in the stream is unknown.
  virtual Task<void> read(std::span<std::byte> bytes, Time deadline) = 0;
  virtual Task<void> write(std::span<const std::byte> bytes, Time deadline) = 0;
  virtual Task<void> write_file(os::FileSpan span, Time deadline) = 0;
  virtual void close() = 0;
  virtual std::string remote() const = 0;  // For messages only.
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual Task<std::shared_ptr<Connection>> accept() = 0;  // Errors: cancelled (closed).
  virtual void close() = 0;
  virtual std::string address() const = 0;  // "host:port", with the port that was given out.
};

class Network {
 public:
  virtual ~Network() = default;
  // The deadline is for looking up the name in the address.
  virtual Task<std::unique_ptr<Listener>> listen(std::string address, Time deadline) = 0;
  virtual Task<std::shared_ptr<Connection>> connect(std::string address, Time deadline) = 0;
  // Takes over an idle connection of another Network: from now on it belongs to this Network's
  // executor. Called on the other executor. Null: it is closed already.
  virtual std::shared_ptr<Connection> adopt(std::shared_ptr<Connection> connection) {
    return connection;
  }
};

}  // namespace ckpt::wire
