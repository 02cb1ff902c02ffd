#include "wire/peer_acceptor.hpp"

#include <algorithm>
#include <boost/asio/ip/network_v6.hpp>
#include <list>
#include <map>
#include <string>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "base/spawn.hpp"
#include "wire/address.hpp"

namespace ckpt::wire {

namespace {

constexpr double seconds_between_complaints = 10;
// A pause after accept() failed: without a free descriptor it would fail again at once.
constexpr Duration accept_retry_delay = std::chrono::milliseconds(100);

struct HalfOpen {
  std::string origin;
  std::shared_ptr<Connection> connection;
};

struct Acceptor {
  Admit admit;
  std::list<HalfOpen> half_open;  // The oldest first.
  LogLimit complaints{seconds_between_complaints};
};

void complain(Acceptor& acceptor, const std::string& what) {
  if (acceptor.complaints.may_speak()) log_warning("{}", what);
}

std::string origin_of(const Connection& connection) {
  const auto address = Address::parse(connection.remote());
  if (!address) return connection.remote();
  boost::system::error_code error;
  const auto number = asio::ip::make_address_v6(address->host, error);
  if (error) return address->host;
  return asio::ip::make_network_v6(number, 64).canonical().to_string();
}

// The address with the most half-open connections.
std::string busiest_origin(const Acceptor& acceptor) {
  std::map<std::string, std::size_t> counts;
  for (const HalfOpen& other : acceptor.half_open) ++counts[other.origin];
  const auto most = std::max_element(counts.begin(), counts.end(), [](auto& left, auto& right) {
    return left.second < right.second;
  });
  CKPT_ASSERT(most != counts.end());
  return most->first;
}

void make_room(Acceptor& acceptor, const std::string& newcomer) {
  const auto of_newcomer =
      std::count_if(acceptor.half_open.begin(), acceptor.half_open.end(),
                    [&](const HalfOpen& other) { return other.origin == newcomer; });
  const bool has_its_share = static_cast<std::size_t>(of_newcomer) >= half_open_of_one_max;
  if (!has_its_share && acceptor.half_open.size() < half_open_connections_max) return;
  const std::string origin = has_its_share ? newcomer : busiest_origin(acceptor);
  const auto oldest = std::find_if(acceptor.half_open.begin(), acceptor.half_open.end(),
                                   [&](const HalfOpen& other) { return other.origin == origin; });
  complain(acceptor,
           fmt::format("closed a connection from {}: it had not proven itself, and {} others "
                       "wait to",
                       oldest->connection->remote(), acceptor.half_open.size()));
  oldest->connection->close();
  acceptor.half_open.erase(oldest);
}

DetachedTask greet(std::shared_ptr<Acceptor> acceptor, std::shared_ptr<Connection> connection,
                   std::shared_ptr<const ListenerOptions> options, Time deadline) {
  auto peer = co_await greet_as_listener(connection, std::move(options), deadline);
  const auto closed = std::erase_if(acceptor->half_open, [&](const HalfOpen& other) {
                        return other.connection == connection;
                      }) == 0;
  if (closed) co_return;
  if (peer) {
    acceptor->admit(std::move(connection), std::move(peer).value());
  } else {
    complain(*acceptor, "refused a connection: " + peer.error().message());
  }
}

}  // namespace

Task<void> admit_peers(Listener& listener, Clock& clock,
                       std::shared_ptr<const ListenerOptions> options, Admit admit) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  const auto acceptor = std::make_shared<Acceptor>();
  acceptor->admit = std::move(admit);
  for (;;) {
    auto accepted = co_await listener.accept();
    if (!accepted) {
      if (accepted.error().code() == Errc::cancelled) co_return Status();
      complain(*acceptor, accepted.error().message());
      CKPT_CO_CHECK(co_await sleep_until(clock, clock.after(accept_retry_delay)));
      continue;
    }
    std::shared_ptr<Connection> connection = std::move(accepted).value();
    std::string origin = origin_of(*connection);
    make_room(*acceptor, origin);
    acceptor->half_open.push_back(HalfOpen{std::move(origin), connection});
    run_detached(executor,
                 greet(acceptor, std::move(connection), options, clock.after(greeting_time_max)));
  }
}

}  // namespace ckpt::wire
