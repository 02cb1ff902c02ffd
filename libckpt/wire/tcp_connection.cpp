#include "wire/tcp_connection.hpp"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <csignal>
#include <ctime>

namespace ckpt::wire {

namespace {

constexpr auto token = asio::as_tuple(asio::use_awaitable);

// One coroutine moves at most this much before others on the thread run: a millisecond or less.
constexpr std::size_t turn_bytes_max = 1 << 20;

// A read waits for at most this much before it takes the bytes that are there. Fits the smallest
// receive buffers, and the cache of the core that processes it.
constexpr std::size_t wake_bytes_max = 128 << 10;

void set_option(int socket, int level, int name, int value) {
  // A refused option costs speed, or time to notice a loss, never correctness.
  static_cast<void>(::setsockopt(socket, level, name, &value, sizeof(value)));
}

void set_options(int socket, const TcpOptions& options) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  const auto unanswered = static_cast<int>(options.unanswered_max.count());
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, unanswered);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, unanswered / 2000));
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 5);
}

// sendfile() has no MSG_NOSIGNAL, and a library must not change the program's handling of SIGPIPE.
// So the signal is blocked during the call, and taken out of the queue if the call raised it.
class PipeSignalGuard {
 public:
  PipeSignalGuard() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    sigset_t waiting;
    ::sigpending(&waiting);
    was_pending_ = ::sigismember(&waiting, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  PipeSignalGuard(const PipeSignalGuard&) = delete;
  PipeSignalGuard& operator=(const PipeSignalGuard&) = delete;
  ~PipeSignalGuard() {
    if (!was_pending_ && raised_) {
      const timespec at_once{};
      while (::sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {
      }
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  void note_raised() { raised_ = true; }

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
  bool raised_ = false;
};

// Like sendfile; keeps errno.
ssize_t send_from_file(int socket, int file, off_t& offset, std::size_t bytes) {
  PipeSignalGuard guard;
  const ssize_t sent = ::sendfile(socket, file, &offset, bytes);
  const int error = errno;
  if (sent < 0 && error == EPIPE) guard.note_raised();
  errno = error;
  return sent;
}

bool is_would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}
bool is_refusal_of_sendfile(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

}  // namespace

TcpConnection::TcpConnection(asio::ip::tcp::socket socket, Clock& clock, std::string remote,
                             const TcpOptions& options)
    : socket_(std::move(socket)), clock_(clock), remote_(std::move(remote)) {
  boost::system::error_code ignored;
  socket_.native_non_blocking(true, ignored);
  set_options(socket_.native_handle(), options);
  if (options.bytes_per_second_max != 0) {
    const Status paced = set_pacing_rate(options.bytes_per_second_max);
    static_cast<void>(paced);  // Without pacing it is only less polite.
  }
}

TcpConnection::~TcpConnection() {
  TcpConnection::close();
}

void TcpConnection::close() {
  if (is_closed_) return;
  is_closed_ = true;
  boost::system::error_code ignored;
  socket_.close(ignored);
}

std::optional<asio::ip::tcp::socket> TcpConnection::release(const asio::any_io_executor& executor) {
  boost::system::error_code error;
  const auto protocol = socket_.local_endpoint(error).protocol();
  if (is_closed_ || error) return std::nullopt;
  is_closed_ = true;
  const auto descriptor = socket_.release(error);
  if (error) return std::nullopt;
  asio::ip::tcp::socket socket(executor);
  socket.assign(protocol, descriptor, error);
  if (error) return std::nullopt;
  return socket;
}

Status TcpConnection::set_pacing_rate(std::uint64_t bytes_per_second) {
  const std::uint64_t rate = bytes_per_second == 0 ? UINT64_MAX : bytes_per_second;
  if (::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate)))
    return fail(Errc::unsupported, fmt::format("pace {}: the kernel does not support it", remote_),
                std::error_code(errno, std::generic_category()));
  return Status();
}

Task<void> TcpConnection::await_ready(asio::socket_base::wait_type direction, Time deadline,
                                      const char* doing) {
  turn_bytes_ = 0;
  std::unique_ptr<Timer> timer;
  if (deadline != no_deadline) {
    std::function<void()> expired = [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || self->is_closed_) return;
      self->deadline_passed_ = true;
      self->close();
    };
    timer = clock_.call_at(deadline, std::move(expired));
  }
  const auto [error] = co_await socket_.async_wait(direction, token);
  if (error) co_return failure(doing, error);
  co_return check_open(doing);
}

void TcpConnection::wake_at(std::size_t wanted_bytes) {
  const std::size_t bytes = std::min(wanted_bytes, wake_bytes_max);
  if (bytes == wake_bytes_) return;
  wake_bytes_ = bytes;
  set_option(socket_.native_handle(), SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(bytes));
}

bool TcpConnection::is_turn_over(std::size_t moved_bytes) {
  turn_bytes_ += moved_bytes;
  return turn_bytes_ >= turn_bytes_max;
}

Task<void> TcpConnection::yield(Time deadline, const char* doing) {
  turn_bytes_ = 0;
  co_await asio::post(socket_.get_executor(), asio::use_awaitable);
  if (!is_closed_ && clock_.now() >= deadline) {
    deadline_passed_ = true;
    close();
  }
  co_return check_open(doing);
}

Status TcpConnection::check_open(const char* doing) const {
  if (deadline_passed_)
    return fail(Errc::unavailable, fmt::format("{} {}: a deadline passed", doing, remote_),
                std::make_error_code(std::errc::timed_out));
  if (is_closed_) return fail(Errc::cancelled, fmt::format("{} {}: closed", doing, remote_));
  return Status();
}

Unexpected TcpConnection::failure(const char* doing, std::error_code error) {
  if (auto open = check_open(doing); !open) return fail(std::move(open).error());
  close();
  return fail(Errc::unavailable, fmt::format("{} {}: the connection was lost", doing, remote_),
              error);
}

Task<void> TcpConnection::read(std::span<std::byte> bytes, Time deadline) {
  constexpr const char* doing = "read from";
  const auto self = shared_from_this();
  CKPT_CO_CHECK(check_open(doing));
  while (!bytes.empty()) {
    const ssize_t got = ::recv(socket_.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    const int error = got < 0 ? errno : 0;
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
      if (is_turn_over(static_cast<std::size_t>(got))) {
        CKPT_CO_CHECK(co_await yield(deadline, doing));
      }
    } else if (got == 0) {
      close();
      co_return fail(Errc::unavailable,
                     fmt::format("{} {}: it closed the connection", doing, remote_));
    } else if (is_would_block(error)) {
      wake_at(bytes.size());
      CKPT_CO_CHECK(co_await await_ready(asio::socket_base::wait_read, deadline, doing));
    } else if (error != EINTR) {
      co_return failure(doing, std::error_code(error, std::generic_category()));
    }
  }
  co_return Status();
}

Task<void> TcpConnection::write(std::span<const std::byte> bytes, Time deadline) {
  constexpr const char* doing = "write to";
  const auto self = shared_from_this();
  CKPT_CO_CHECK(check_open(doing));
  while (!bytes.empty()) {
    const std::size_t turn = std::min(bytes.size(), turn_bytes_max);
    const ssize_t sent =
        ::send(socket_.native_handle(), bytes.data(), turn, MSG_DONTWAIT | MSG_NOSIGNAL);
    const int error = sent < 0 ? errno : 0;
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
      if (is_turn_over(static_cast<std::size_t>(sent))) {
        CKPT_CO_CHECK(co_await yield(deadline, doing));
      }
    } else if (is_would_block(error)) {
      CKPT_CO_CHECK(co_await await_ready(asio::socket_base::wait_write, deadline, doing));
    } else if (error != EINTR) {
      co_return failure(doing, std::error_code(error, std::generic_category()));
    }
  }
  co_return Status();
}

Task<void> TcpConnection::write_file(os::FileSpan span, Time deadline) {
  constexpr const char* doing = "write to";
  const auto self = shared_from_this();
  CKPT_CO_CHECK(check_open(doing));
  std::span<const std::byte> rest = span.bytes;
  auto offset = static_cast<off_t>(span.offset);
  while (span.fd >= 0 && !rest.empty()) {
    const std::size_t turn = std::min(rest.size(), turn_bytes_max);
    const ssize_t sent = send_from_file(socket_.native_handle(), span.fd, offset, turn);
    const int error = sent < 0 ? errno : 0;
    if (sent > 0) {
      rest = rest.subspan(static_cast<std::size_t>(sent));
      if (is_turn_over(static_cast<std::size_t>(sent))) {
        CKPT_CO_CHECK(co_await yield(deadline, doing));
      }
    } else if (sent == 0) {
      close();
      co_return fail(Errc::io,
                     fmt::format("{} {}: the file ends before its bytes do", doing, remote_));
    } else if (is_would_block(error)) {
      CKPT_CO_CHECK(co_await await_ready(asio::socket_base::wait_write, deadline, doing));
    } else if (is_refusal_of_sendfile(error)) {
      break;
    } else if (error != EINTR) {
      co_return failure(doing, std::error_code(error, std::generic_category()));
    }
  }
  if (!rest.empty()) {
    CKPT_CO_CHECK(co_await write(rest, deadline));
  }
  co_return Status();
}

Task<std::shared_ptr<Connection>> connect_tcp(asio::any_io_executor executor, Clock& clock,
                                              asio::ip::tcp::endpoint endpoint, std::string remote,
                                              TcpOptions options, Time deadline) {
  // Shared with the timer, which may fire when this frame is gone.
  const auto socket = std::make_shared<asio::ip::tcp::socket>(executor);
  std::unique_ptr<Timer> timer;
  if (deadline != no_deadline) {
    timer = clock.call_at(deadline, [weak = std::weak_ptr(socket)] {
      boost::system::error_code ignored;
      if (const auto open = weak.lock()) open->close(ignored);
    });
  }
  const auto [error] = co_await socket->async_connect(endpoint, token);
  timer.reset();
  if (error == boost::asio::error::operation_aborted || (!error && !socket->is_open()))
    co_return fail(Errc::unavailable, fmt::format("connect to {}: the deadline passed", remote),
                   std::make_error_code(std::errc::timed_out));
  if (error) co_return fail(Errc::unavailable, fmt::format("connect to {}", remote), error);
  co_return std::make_shared<TcpConnection>(std::move(*socket), clock, std::move(remote), options);
}

}  // namespace ckpt::wire
