// SimPair: two nodes, A and B, that share a fake clock and talk over the simulated network.
//
// Threads: one.
#pragma once

#include "support/fake_clock.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"

namespace ckpt::test {

struct SimPair {
  explicit SimPair(std::uint64_t seed = 1, SimNetworkOptions options = {})
      : clock(context),
        network(seed, options),
        a(network.add_node("A", clock)),
        b(network.add_node("B", clock)) {
    auto listening = run(b->listen("B:1", no_deadline));
    REQUIRE(listening);
    listener = std::move(listening).value();
  }

  struct Joined {
    std::shared_ptr<wire::Connection> at_a;
    std::shared_ptr<wire::Connection> at_b;
  };
  Joined join() {
    auto accepting = start(context, listener->accept());
    auto dialed = run(a->connect("B:1", clock.after(std::chrono::seconds(10))));
    REQUIRE(dialed);
    Joined joined;
    joined.at_a = *dialed;
    joined.at_b = std::move(finish(clock, std::move(accepting))).value();
    return joined;
  }

  template <class T>
  Result<T> run(Task<T> task) {
    return finish(clock, start(context, std::move(task)));
  }

  asio::io_context context;
  FakeClock clock;
  SimNetwork network;
  std::unique_ptr<wire::Network> a;
  std::unique_ptr<wire::Network> b;
  std::unique_ptr<wire::Listener> listener;
};

}  // namespace ckpt::test
