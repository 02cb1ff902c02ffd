#include "wire/doorkeeper.hpp"

#include <algorithm>
#include <boost/asio/ip/network_v6.hpp>
#include <list>
#include <map>
#include <string>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "wire/address.hpp"

namespace ckpt::wire {

namespace {

constexpr double seconds_between_complaints = 10;
// After accept() failed, as it does without a free descriptor: not to spin on it.
constexpr Duration accept_retry_delay = std::chrono::milliseconds(100);

struct HalfOpen {
  std::string origin;
  std::shared_ptr<Connection> connection;
};

struct Door {
  Admit admit;
  std::list<HalfOpen> half_open;  // The oldest first.
  LogLimit complaints{seconds_between_complaints};
};

void complain(Door& door, const std::string& what) {
  if (door.complaints.may_speak()) log_warning("{}", what);
}

std::string origin_of(const Connection& connection) {
  const auto address = Address::parse(connection.remote());
  if (!address) return connection.remote();
  boost::system::error_code error;
  const auto number = asio::ip::make_address_v6(address->host, error);
  if (error) return address->host;
  return asio::ip::make_network_v6(number, 64).canonical().to_string();
}

// The address that has most of them.
std::string busiest_origin(const Door& door) {
  std::map<std::string, std::size_t> counts;
  for (const HalfOpen& other : door.half_open) ++counts[other.origin];
  const auto most = std::max_element(counts.begin(), counts.end(), [](auto& left, auto& right) {
    return left.second < right.second;
  });
  CKPT_ASSERT(most != counts.end());
  return most->first;
}

void make_room(Door& door, const std::string& newcomer) {
  const auto of_newcomer =
      std::count_if(door.half_open.begin(), door.half_open.end(),
                    [&](const HalfOpen& other) { return other.origin == newcomer; });
  const bool has_its_share = static_cast<std::size_t>(of_newcomer) >= half_open_of_one_max;
  if (!has_its_share && door.half_open.size() < half_open_connections_max) return;
  const std::string origin = has_its_share ? newcomer : busiest_origin(door);
  const auto oldest = std::find_if(door.half_open.begin(), door.half_open.end(),
                                   [&](const HalfOpen& other) { return other.origin == origin; });
  complain(door, fmt::format("closed a connection from {}: it had not proven itself, and {} others "
                             "wait to",
                             oldest->connection->remote(), door.half_open.size()));
  oldest->connection->close();
  door.half_open.erase(oldest);
}

Job greet(std::shared_ptr<Door> door, std::shared_ptr<Connection> connection,
          std::shared_ptr<const ListenerOptions> options, Time deadline) {
  auto peer = co_await greet_as_listener(connection, std::move(options), deadline);
  const auto closed = std::erase_if(door->half_open, [&](const HalfOpen& other) {
                        return other.connection == connection;
                      }) == 0;
  if (closed) co_return;
  if (peer) {
    door->admit(std::move(connection), std::move(peer).value());
  } else {
    complain(*door, "refused a connection: " + peer.error().message());
  }
}

}  // namespace

Task<void> admit_peers(Listener& listener, Clock& clock,
                       std::shared_ptr<const ListenerOptions> options, Admit admit) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  const auto door = std::make_shared<Door>();
  door->admit = std::move(admit);
  for (;;) {
    auto accepted = co_await listener.accept();
    if (!accepted) {
      if (accepted.error().code() == Errc::cancelled) co_return Status();
      complain(*door, accepted.error().message());
      CKPT_CO_CHECK(co_await sleep_until(clock, clock.after(accept_retry_delay)));
      continue;
    }
    std::shared_ptr<Connection> connection = std::move(accepted).value();
    std::string origin = origin_of(*connection);
    make_room(*door, origin);
    door->half_open.push_back(HalfOpen{std::move(origin), connection});
    asio::co_spawn(executor,
                   greet(door, std::move(connection), options, clock.after(greeting_time_max)),
                   asio::detached);
  }
}

}  // namespace ckpt::wire
