#include "examples/training/exchange.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace example {

using ckpt::Errc;
using ckpt::fail;
using ckpt::Status;

namespace {

std::error_code last_error() {
  return std::error_code(errno, std::system_category());
}

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
};

ckpt::Result<Address> parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (colon == std::string::npos ||
      ::getaddrinfo(text.substr(0, colon).c_str(), text.substr(colon + 1).c_str(), &hints,
                    &found) != 0)
    return fail(Errc::invalid_argument, "exchange: '" + text + "' is no host:port");
  Address address;
  std::memcpy(&address.bytes, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

Status wait_for(int socket, short events, std::chrono::milliseconds deadline) {
  pollfd entry{socket, events, 0};
  const int ready = ::poll(&entry, 1, static_cast<int>(deadline.count()));
  if (ready > 0) return {};
  return fail(Errc::unavailable, "exchange: no answer from another rank in time",
              ready < 0 ? last_error() : std::error_code());
}

void make_prompt(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

Exchange::Exchange(Exchange&& other) noexcept
    : options_(std::move(other.options_)), sockets_(std::move(other.sockets_)) {
  other.sockets_.clear();
}

Exchange::~Exchange() {
  for (const int socket : sockets_)
    if (socket >= 0) ::close(socket);
}

ckpt::Result<Exchange> Exchange::open(const ExchangeOptions& options) {
  Exchange exchange(options);
  if (options.address.empty() || options.world == 1) return exchange;
  if (options.rank != 0) {
    CKPT_CHECK(exchange.connect_root());
    return exchange;
  }
  CKPT_TRY(const Address address, parse_address(options.address));
  const int listener = ::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return fail(Errc::io, "exchange: make a socket", last_error());
  const int on = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  Status accepted;
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address.bytes), address.length) != 0 ||
      ::listen(listener, 64) != 0)
    accepted = fail(Errc::io, "exchange: listen on " + options.address, last_error());
  else
    accepted = exchange.accept_all(listener);
  ::close(listener);
  CKPT_CHECK(std::move(accepted));
  return exchange;
}

Status Exchange::accept_all(int listener) {
  sockets_.assign(options_.world, -1);
  for (std::uint32_t come = 1; come < options_.world; ++come) {
    CKPT_CHECK(wait_for(listener, POLLIN, options_.deadline));
    const int socket = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return fail(Errc::io, "exchange: accept a rank", last_error());
    make_prompt(socket);
    std::uint32_t rank = 0;
    Status greeted = receive_all(socket, std::as_writable_bytes(std::span(&rank, 1)));
    if (greeted && (rank == 0 || rank >= options_.world || sockets_[rank] >= 0))
      greeted = fail(Errc::invalid_argument, "exchange: rank " + std::to_string(rank) + " came");
    if (!greeted) {
      ::close(socket);
      return greeted;
    }
    sockets_[rank] = socket;
  }
  return {};
}

Status Exchange::connect_root() {
  CKPT_TRY(const Address address, parse_address(options_.address));
  const auto give_up = std::chrono::steady_clock::now() + options_.deadline;
  for (;;) {
    const int socket = ::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket < 0) return fail(Errc::io, "exchange: make a socket", last_error());
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&address.bytes), address.length) == 0) {
      make_prompt(socket);
      sockets_.assign(1, socket);
      return send_all(socket, std::as_bytes(std::span(&options_.rank, 1)));
    }
    const std::error_code cause = last_error();
    ::close(socket);
    if (std::chrono::steady_clock::now() > give_up)
      return fail(Errc::unavailable, "exchange: connect to " + options_.address, cause);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

Status Exchange::send_all(int socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    CKPT_CHECK(wait_for(socket, POLLOUT, options_.deadline));
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent < 0) return fail(Errc::unavailable, "exchange: another rank is gone", last_error());
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return {};
}

Status Exchange::receive_all(int socket, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    CKPT_CHECK(wait_for(socket, POLLIN, options_.deadline));
    const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0)
      return fail(Errc::unavailable, "exchange: another rank is gone",
                  got < 0 ? last_error() : std::error_code());
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

Status Exchange::sum(std::span<float> values) {
  if (sockets_.empty()) return {};
  if (options_.rank != 0) {
    CKPT_CHECK(send_all(sockets_[0], std::as_bytes(values)));
    return receive_all(sockets_[0], std::as_writable_bytes(values));
  }
  std::vector<float> theirs(values.size());
  for (std::uint32_t rank = 1; rank < options_.world; ++rank) {
    CKPT_CHECK(receive_all(sockets_[rank], std::as_writable_bytes(std::span(theirs))));
    for (std::size_t index = 0; index < values.size(); ++index) values[index] += theirs[index];
  }
  for (std::uint32_t rank = 1; rank < options_.world; ++rank)
    CKPT_CHECK(send_all(sockets_[rank], std::as_bytes(values)));
  return {};
}

Status Exchange::gather(std::span<float> values, const std::vector<std::size_t>& ends) {
  if (sockets_.empty()) return {};
  const auto share = [&](std::uint32_t rank) {
    const std::size_t begin = rank == 0 ? 0 : ends[rank - 1];
    return values.subspan(begin, ends[rank] - begin);
  };
  if (options_.rank != 0) {
    CKPT_CHECK(send_all(sockets_[0], std::as_bytes(share(options_.rank))));
    return receive_all(sockets_[0], std::as_writable_bytes(values));
  }
  for (std::uint32_t rank = 1; rank < options_.world; ++rank)
    CKPT_CHECK(receive_all(sockets_[rank], std::as_writable_bytes(share(rank))));
  for (std::uint32_t rank = 1; rank < options_.world; ++rank)
    CKPT_CHECK(send_all(sockets_[rank], std::as_bytes(values)));
  return {};
}

}  // namespace example
