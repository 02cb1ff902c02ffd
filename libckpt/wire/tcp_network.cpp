#include "wire/tcp_network.hpp"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <vector>

#include "base/signal.hpp"
#include "wire/address.hpp"

namespace ckpt::wire {

namespace {

using asio::ip::tcp;
constexpr int backlog_max = 128;  // Connections the kernel holds for us; the rest must retry.

std::string to_text(const tcp::endpoint& endpoint) {
  Address address;
  address.host = endpoint.address().to_string();
  address.port = endpoint.port();
  return address.to_string();
}

std::optional<tcp::endpoint> numeric_endpoint(const Address& address) {
  boost::system::error_code error;
  const auto host = asio::ip::make_address(address.host, error);
  if (error) return std::nullopt;
  return tcp::endpoint(host, address.port);
}

// Port: the acceptor, shared with the coroutine that waits on it.
struct Port {
  Port(const asio::any_io_executor& executor, Clock& the_clock, const TcpOptions& the_options)
      : acceptor(executor), clock(the_clock), options(the_options) {}

  tcp::acceptor acceptor;
  Clock& clock;
  TcpOptions options;
  std::string address;
};

Task<std::shared_ptr<Connection>> accept_on(std::shared_ptr<Port> port) {
  for (;;) {
    if (!port->acceptor.is_open())
      co_return fail(Errc::cancelled, "accept on " + port->address + ": closed");
    auto [error, socket] =
        co_await port->acceptor.async_accept(asio::as_tuple(asio::use_awaitable));
    if (!port->acceptor.is_open() || error == asio::error::operation_aborted)
      co_return fail(Errc::cancelled, "accept on " + port->address + ": closed");
    // A dialer that gave up while it waited is no reason to stop.
    if (error == asio::error::connection_aborted) continue;
    if (error) co_return fail(Errc::io, "accept on " + port->address, error);
    boost::system::error_code gone;
    const tcp::endpoint remote = socket.remote_endpoint(gone);
    if (gone) continue;
    co_return std::make_shared<TcpConnection>(std::move(socket), port->clock, to_text(remote),
                                              port->options);
  }
}

class TcpListener : public Listener {
 public:
  explicit TcpListener(std::shared_ptr<Port> port) : port_(std::move(port)) {}
  ~TcpListener() override { TcpListener::close(); }

  Task<std::shared_ptr<Connection>> accept() override { return accept_on(port_); }
  void close() override {
    boost::system::error_code ignored;
    port_->acceptor.close(ignored);
  }
  std::string address() const override { return port_->address; }

 private:
  std::shared_ptr<Port> port_;
};

Status open_port(Port& port, const tcp::endpoint& endpoint) {
  boost::system::error_code error;
  port.acceptor.open(endpoint.protocol(), error);
  if (!error) port.acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && endpoint.address().is_v6())
    port.acceptor.set_option(asio::ip::v6_only(true), error);
  if (!error) port.acceptor.bind(endpoint, error);
  if (!error) port.acceptor.listen(backlog_max, error);
  if (!error) {
    port.address = to_text(port.acceptor.local_endpoint(error));
    if (!error) return Status();
  }
  const std::string doing = "listen on " + to_text(endpoint);
  if (error == asio::error::address_in_use)
    return fail(Errc::unavailable, doing + ": another program has the port", error);
  if (error == std::errc::address_not_available)
    return fail(Errc::invalid_argument, doing + ": this machine has no such address", error);
  if (error == asio::error::access_denied)
    return fail(Errc::invalid_argument, doing + ": the port is reserved for root", error);
  return fail(Errc::io, doing, error);
}

// Lookup: a name on its way to addresses, on the resolver's own thread.
struct Lookup {
  Lookup(const asio::any_io_executor& executor, Clock& clock) : resolver(executor), done(clock) {}

  tcp::resolver resolver;
  Signal done;
  bool is_done = false;
  boost::system::error_code error;
  std::vector<tcp::endpoint> endpoints;
};

Task<std::vector<tcp::endpoint>> look_up(asio::any_io_executor executor, Clock& clock,
                                         Address address, Time deadline) {
  if (const auto numeric = numeric_endpoint(address))
    co_return std::vector<tcp::endpoint>(1, *numeric);
  const auto lookup = std::make_shared<Lookup>(executor, clock);
  lookup->resolver.async_resolve(
      address.host, std::to_string(address.port), tcp::resolver::numeric_service,
      [lookup](boost::system::error_code error, const tcp::resolver::results_type& results) {
        lookup->is_done = true;
        lookup->error = error;
        for (const auto& result : results) lookup->endpoints.push_back(result.endpoint());
        lookup->done.notify_all();
      });
  while (!lookup->is_done) {
    CKPT_CO_TRY(const bool is_notified, co_await lookup->done.wait_until(deadline));
    if (is_notified) continue;
    lookup->resolver.cancel();
    co_return fail(Errc::unavailable, "look up " + address.host + ": the deadline passed");
  }
  if (lookup->error || lookup->endpoints.empty())
    co_return fail(Errc::unavailable, "look up " + address.host, lookup->error);
  co_return lookup->endpoints;
}

}  // namespace

TcpNetwork::TcpNetwork(asio::any_io_executor executor, Clock& clock, TcpOptions options)
    : executor_(std::move(executor)), clock_(clock), options_(options) {}

Task<std::unique_ptr<Listener>> TcpNetwork::listen(std::string text, Time deadline) {
  auto port = std::make_shared<Port>(executor_, clock_, options_);
  CKPT_CO_TRY(const Address address, Address::parse(text));
  const auto endpoints = co_await look_up(executor_, clock_, address, deadline);
  if (!endpoints)
    co_return fail(Errc::invalid_argument, "listen on " + text + ": " + endpoints.error().text());
  CKPT_CO_CHECK(open_port(*port, endpoints->front()));
  co_return std::make_unique<TcpListener>(std::move(port));
}

Task<std::shared_ptr<Connection>> TcpNetwork::connect(std::string text, Time deadline) {
  // Kept in the frame: the network may go while this waits.
  const asio::any_io_executor executor = executor_;
  Clock& clock = clock_;
  const TcpOptions options = options_;
  CKPT_CO_TRY(const Address address, Address::parse(text));
  CKPT_CO_TRY(const auto endpoints, co_await look_up(executor, clock, address, deadline));
  Result<std::shared_ptr<Connection>> outcome = fail(Errc::unavailable, "connect to " + text);
  for (std::size_t index = 0; index < endpoints.size(); ++index) {
    Time until = deadline;
    const auto left = static_cast<Duration::rep>(endpoints.size() - index);
    if (deadline != no_deadline) until = clock.now() + (deadline - clock.now()) / left;
    const tcp::endpoint endpoint = endpoints[index];
    outcome = co_await connect_tcp(executor, clock, endpoint, text, options, until);
    if (outcome) co_return outcome;
  }
  co_return outcome;
}

std::shared_ptr<Connection> TcpNetwork::adopt(std::shared_ptr<Connection> connection) {
  auto* const tcp = dynamic_cast<TcpConnection*>(connection.get());
  if (tcp == nullptr || tcp->executor() == executor_) return connection;
  std::string remote = tcp->remote();
  auto socket = tcp->release(executor_);
  if (!socket) return nullptr;
  return std::make_shared<TcpConnection>(std::move(*socket), clock_, std::move(remote), options_);
}

}  // namespace ckpt::wire
