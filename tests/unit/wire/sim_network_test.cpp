// Goal:   the simulated network is as unkind as a real one, in ways that the seed decides, and a
//         killed node leaves nothing behind that runs or dangles.
// Method: nodes with an io_context and a clock each; one is killed and destroyed in mid-stream.
#include "support/sim_network.hpp"
#include "base/spawn.hpp"

#include <catch2/catch.hpp>

#include "support/sim_pair.hpp"
#include "wire/message.hpp"

namespace ckpt::test {

namespace {

struct Machine {
  Machine(SimNetwork& world, const std::string& name)
      : clock(context), network(world.add_node(name, clock)) {}

  Result<std::unique_ptr<wire::Listener>> listen(const std::string& address) {
    return finish(clock, start(context, network->listen(address, no_deadline)));
  }

  // The context goes last: frames still know the clock and the network's ends.
  asio::io_context context;
  FakeClock clock;
  std::unique_ptr<wire::Network> network;
};

void pass(std::vector<Machine*> machines, Duration duration) {
  constexpr Duration tick = std::chrono::milliseconds(1);
  for (Duration gone{0}; gone < duration; gone += tick)
    for (Machine* machine : machines) machine->clock.advance(tick);
}

// Sends without end, from a frame that owns its connection.
DetachedTask babble(std::shared_ptr<wire::Connection> connection) {
  const std::vector<std::byte> words(1000, std::byte(7));
  const std::span<const std::byte> bytes(words);
  bool is_written = true;
  while (is_written) {
    const Status written = co_await connection->write(bytes, no_deadline);
    is_written = written.has_value();
  }
}

Task<void> listen_for_ever(std::shared_ptr<wire::Listener> listener) {
  for (;;) {
    CKPT_CO_TRY(const auto connection, co_await listener->accept());
    const auto executor = co_await asio::this_coro::executor;
    run_detached(executor, babble(connection));
  }
}

constexpr Duration moment = std::chrono::milliseconds(20);

}  // namespace

TEST_CASE("sim network: a killed node is silent or resets, and its frames die unrun",
          "[unit][wire]") {
  bool was_silent = false;
  bool was_reset = false;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimNetwork world(seed);
    Machine survivor(world, "A");
    auto victim = std::make_unique<Machine>(world, "B");
    std::shared_ptr<wire::Listener> listener = std::move(*victim->listen("B:1"));
    start(victim->context, listen_for_ever(listener));
    listener.reset();
    auto dialing = start(survivor.context, survivor.network->connect("B:1", no_deadline));
    pass({&survivor, victim.get()}, moment);
    REQUIRE(dialing.result());
    const auto connection = *dialing.result();
    world.kill("B");
    victim.reset();
    // Bytes on their way still arrive; then nothing, or a reset.
    std::vector<std::byte> target(10 * MiB);
    auto reading =
        start(survivor.context, connection->read(target, survivor.clock.after(5 * moment)));
    pass({&survivor}, moment);
    (reading.is_done() ? was_reset : was_silent) = true;
    pass({&survivor}, 5 * moment);
    REQUIRE(reading.is_done());
    REQUIRE_FALSE(reading.result());
    REQUIRE(reading.result().error().code() == Errc::unavailable);
    auto again =
        start(survivor.context, survivor.network->connect("B:1", survivor.clock.after(moment)));
    pass({&survivor}, 2 * moment);
    REQUIRE(again.is_done());
    REQUIRE_FALSE(again.result());
  }
  REQUIRE(was_silent);
  REQUIRE(was_reset);
}

TEST_CASE("sim network: a node comes back under its name as a new one", "[unit][wire]") {
  SimNetwork world(3);
  Machine survivor(world, "A");
  auto first = std::make_unique<Machine>(world, "B");
  auto old_port = first->listen("B:1");
  REQUIRE(old_port);
  world.kill("B");
  Machine second(world, "B");
  auto new_port = second.listen("B:1");
  REQUIRE(new_port);
  // The rest of the old one must not take the address with it.
  old_port->reset();
  first.reset();
  auto accepting = start(second.context, (*new_port)->accept());
  auto dialing = start(survivor.context, survivor.network->connect("B:1", no_deadline));
  pass({&survivor, &second}, moment);
  REQUIRE(dialing.result());
  REQUIRE(accepting.result());
}

TEST_CASE("sim network: a partition holds the bytes back, and healing lets them go on",
          "[unit][wire]") {
  SimNetworkOptions options;
  options.break_at_heal_one_in = 0;
  SimPair pair(1, options);
  const auto joined = pair.join();
  pair.network.partition_one_way("A", "B");
  const std::vector<std::byte> sent(100, std::byte(3));
  REQUIRE(pair.run(joined.at_a->write(sent, no_deadline)));
  REQUIRE(pair.run(joined.at_b->write(sent, no_deadline)));
  std::vector<std::byte> at_a(100);
  std::vector<std::byte> at_b(100);
  auto cut_off = start(pair.context, joined.at_b->read(at_b, no_deadline));
  REQUIRE(pair.run(joined.at_a->read(at_a, no_deadline)));
  pair.clock.advance(std::chrono::seconds(10));
  REQUIRE_FALSE(cut_off.is_done());
  pair.network.heal_all();
  REQUIRE(finish(pair.clock, std::move(cut_off)));
  REQUIRE(at_b == sent);
}

TEST_CASE("sim network: nobody connects across a partition", "[unit][wire]") {
  SimPair pair;
  const bool forth = GENERATE(true, false);
  pair.network.partition_one_way(forth ? "A" : "B", forth ? "B" : "A");
  const auto dialed = pair.run(pair.a->connect("B:1", pair.clock.after(std::chrono::seconds(1))));
  REQUIRE_FALSE(dialed);
  REQUIRE(dialed.error().code() == Errc::unavailable);
}

TEST_CASE("sim network: some streams break when a partition heals, by seed", "[unit][wire]") {
  int broken = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SimPair pair(seed);
    const auto joined = pair.join();
    pair.network.partition("A", "B");
    pair.network.heal("B", "A");
    if (pair.network.open_streams("A") == 0) ++broken;
  }
  REQUIRE(broken > 0);
  REQUIRE(broken < 40);
}

TEST_CASE("sim network: bandwidth is kept", "[unit][wire]") {
  SimNetworkOptions options;
  options.bytes_per_second = 1'000'000;
  SimPair pair(1, options);
  const auto joined = pair.join();
  const std::vector<std::byte> sent(3'000'000);
  std::vector<std::byte> got(sent.size());
  const Time before = pair.clock.now();
  auto writing = start(pair.context, joined.at_a->write(sent, no_deadline));
  REQUIRE(pair.run(joined.at_b->read(got, no_deadline)));
  REQUIRE(finish(pair.clock, std::move(writing)));
  const Duration took = pair.clock.now() - before;
  REQUIRE(took >= std::chrono::milliseconds(2900));
  REQUIRE(took <= std::chrono::milliseconds(3200));
}

TEST_CASE("sim network: streams between two nodes can be reset from outside", "[unit][wire]") {
  SimPair pair;
  const auto joined = pair.join();
  std::vector<std::byte> got(1);
  auto reading = start(pair.context, joined.at_b->read(got, no_deadline));
  pair.network.reset_streams("A", "B");
  const Status ended = finish(pair.clock, std::move(reading));
  REQUIRE_FALSE(ended);
  REQUIRE(ended.error().code() == Errc::unavailable);
  REQUIRE(pair.network.open_streams("A") == 0);
}

}  // namespace ckpt::test
