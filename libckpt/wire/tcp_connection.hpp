// TcpConnection: one stream to a peer over TCP, where each operation ends by its deadline.
//
// A deadline that passes closes the socket, because its place in the stream is unknown.
//
// Threads: those of the executor, one at a time. Lifetime: held by shared_ptr; the clock outlives
// it.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <optional>

#include "wire/connection.hpp"

namespace ckpt::wire {

struct TcpOptions {
  // Unacknowledged data breaks the connection after this, as does silence of the peer's kernel.
  std::chrono::milliseconds unanswered_max{10'000};
  std::uint64_t bytes_per_second_max = 0;  // Paced by the kernel; 0: not at all.
};

class TcpConnection : public Connection, public std::enable_shared_from_this<TcpConnection> {
 public:
  // `socket` is connected. Options that the kernel refuses are left out.
  TcpConnection(asio::ip::tcp::socket socket, Clock& clock, std::string remote,
                const TcpOptions& options);
  ~TcpConnection() override;

  Task<void> read(std::span<std::byte> bytes, Time deadline) override;
  Task<void> write(std::span<const std::byte> bytes, Time deadline) override;
  // By sendfile(2): the pages must not change until the peer has answered or this is closed.
  Task<void> write_file(os::FileSpan span, Time deadline) override;
  void close() override;
  std::string remote() const override { return remote_; }

  asio::any_io_executor executor() { return socket_.get_executor(); }
  // Returns the stream for another executor, and closes this connection. None: it was closed
  // already. Nothing may be in flight.
  std::optional<asio::ip::tcp::socket> release(const asio::any_io_executor& executor);

  // Errors: unsupported (the kernel does not pace).
  Status set_pacing_rate(std::uint64_t bytes_per_second);

 private:
  // Most calls to the kernel move bytes at once, so a timer is armed only when one would wait.
  Task<void> await_ready(asio::socket_base::wait_type direction, Time deadline, const char* doing);
  // Lets the kernel wake a read when this many bytes are there, not for each segment.
  void wake_at(std::size_t wanted_bytes);
  // After a turn's worth of bytes, others on the thread run first, and the deadline is checked.
  bool is_turn_over(std::size_t moved_bytes);
  Task<void> yield(Time deadline, const char* doing);

  Status check_open(const char* doing) const;
  // Closes, and returns the reason: the deadline, close(), or the network.
  Unexpected failure(const char* doing, std::error_code error);

  asio::ip::tcp::socket socket_;
  Clock& clock_;
  std::string remote_;
  std::size_t turn_bytes_ = 0;
  std::size_t wake_bytes_ = 1;  // SO_RCVLOWAT, as the kernel has it.
  bool is_closed_ = false;
  bool deadline_passed_ = false;
};

// Waits until the connection is made, at most until the deadline. Errors: unavailable.
Task<std::shared_ptr<Connection>> connect_tcp(asio::any_io_executor executor, Clock& clock,
                                              asio::ip::tcp::endpoint endpoint, std::string remote,
                                              TcpOptions options, Time deadline);

}  // namespace ckpt::wire
