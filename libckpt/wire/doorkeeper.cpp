#include "wire/doorkeeper.hpp"

#include "base/log.hpp"

namespace ckpt::wire {

namespace {

constexpr double seconds_between_complaints = 10;
// After accept() failed, as it does without a free descriptor: not to spin on it.
constexpr Duration accept_retry_delay = std::chrono::milliseconds(100);

struct Door {
  Admit admit;
  int half_open = 0;
  LogLimit complaints{seconds_between_complaints};
};

void complain(Door& door, const std::string& what) {
  if (door.complaints.may_speak()) log_warning("{}", what);
}

Job greet(std::shared_ptr<Door> door, std::shared_ptr<Connection> connection,
          std::shared_ptr<const ListenerOptions> options, Time deadline) {
  auto peer = co_await greet_as_listener(connection, std::move(options), deadline);
  --door->half_open;
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
    if (door->half_open >= half_open_connections_max) {
      complain(*door, fmt::format("closed a connection from {}: {} others have not yet proven "
                                  "themselves",
                                  connection->remote(), door->half_open));
      connection->close();
      continue;
    }
    ++door->half_open;
    asio::co_spawn(executor,
                   greet(door, std::move(connection), options, clock.after(greeting_time_max)),
                   asio::detached);
  }
}

}  // namespace ckpt::wire
