#include "node/dial.hpp"

namespace ckpt::node {

namespace {

constexpr Duration dial_deadline = std::chrono::seconds(3);

}  // namespace

Task<std::shared_ptr<wire::Connection>> dial_peer(wire::Network& network, Clock& clock,
                                                  DialTarget target, std::uint64_t* boot) {
  CKPT_CO_TRY(wire::Secret checked, wire::Secret::make(std::as_bytes(std::span(target.secret))));
  const Time deadline = clock.after(dial_deadline);
  auto connection = co_await network.connect(target.address, deadline);
  if (!connection) co_return connection;
  wire::DialerOptions options;
  options.job = std::move(target.job);
  options.node = std::move(target.node);
  options.peer_node = std::move(target.peer_node);
  options.boot = target.boot;
  options.purpose = target.purpose;
  options.secret = std::make_shared<const wire::Secret>(std::move(checked));
  options.make_nonce = std::move(target.make_nonce);
  auto identity = co_await wire::greet_as_dialer(*connection, std::move(options), deadline);
  if (!identity) co_return fail(std::move(identity).error());
  if (boot != nullptr) *boot = identity->boot;
  co_return connection;
}

}  // namespace ckpt::node
