// Goal:   a node that was started again gets the copies that it had, though nothing new is
//         captured; and of two that bring it the same shard at once only one may write.
// Method: two engines on a simulated network. One is started again; then, in place of the other, a
//         peer that speaks the protocol by hand.
#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "node/engine.hpp"
#include "support/heap_memory.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"
#include "unit/node/rank.hpp"
#include "unit/replicate/sample_shard.hpp"
#include "wire/message.hpp"

namespace ckpt::node {
namespace {

const std::string secret_of_both = "the secret of both nodes, long enough to be one";
constexpr std::uint64_t returned_bytes = 256 * KiB;

// Takes what it is offered.
struct ReturningTrainer final : test::Rank {
  void offered(control::Offer offer) override {
    CHECK(engine->call(session, control::RestoreResult{offer.offer, {}}));
  }
  Engine* engine = nullptr;
};

struct ReturningNode {
  std::unique_ptr<wire::Network> front;
  std::unique_ptr<Engine> engine;
  ReturningTrainer trainer;
};

struct ReturningNodes {
  explicit ReturningNodes(std::uint64_t network_seed = 1, std::string with_directory = {},
                          std::uint32_t count = 2)
      : directory(std::move(with_directory)), world_size(count), network(network_seed) {}
  ~ReturningNodes() {
    for (ReturningNode* node : {&a, &b, &c}) stop(*node);
    clock.advance(std::chrono::seconds(10));
  }
  void open(ReturningNode& node, const std::string& name, std::uint64_t boot) {
    node.front = network.add_node(name, clock);
    EngineOptions options;
    options.name = name;
    options.boot = boot;
    options.memory_budget = 64 * MiB;
    node.engine = std::make_unique<Engine>(context.get_executor(),
                                           Seams{clock, memory, files, *node.front}, options);
    AttachRequest request;
    request.job = "job";
    request.rank = static_cast<std::uint32_t>(name.front() - 'A');
    request.world_size = request.replicas = world_size;
    for (const std::string member : {"A", "B", "C"})
      if (request.nodes.size() < world_size) request.nodes.push_back({member, "", member + ":1"});
    request.node = name;
    request.own_slots = 4;
    request.secret = secret_of_both;
    request.dir = directory;
    if (!directory.empty()) request.save_storage_interval.steps = 1;
    auto attached =
        test::finish(clock, test::start(context, node.engine->attach(request, node.trainer)));
    REQUIRE((attached ? "" : attached.error().message()) == "");
    node.trainer.session = attached->session;
    node.trainer.engine = node.engine.get();
    run = attached->run;
    const format::TensorSpec spec{"weight", DType::u8, {returned_bytes}, "", ""};
    auto layout = format::make_layout(std::span(&spec, 1), request.rank, 0, 1);
    REQUIRE(layout);
    REQUIRE(node.engine->call(node.trainer.session, control::SetLayout{*layout}));
  }
  void stop(ReturningNode& node) {
    if (!node.engine) return;
    (void)test::finish(clock, test::start(context, node.engine->stop(std::chrono::seconds(5))));
    node.engine.reset();
  }
  template <class Claim>
  bool pass_until(Claim claim) {
    const Time limit = clock.after(std::chrono::minutes(2));
    clock.poll();
    while (!claim() && clock.now() < limit && clock.advance_to_next()) {
    }
    return claim();
  }

  const std::string directory;
  const std::uint32_t world_size;
  asio::io_context context;
  test::FakeClock clock{context};
  test::HeapSource memory;
  test::MemoryDisk disk{1};
  test::MemoryFileSystem files{disk, &clock};
  test::SimNetwork network;
  ReturningNode a, b, c;
  format::RunId run;
};

void capture(ReturningNode& node, Step step) {
  REQUIRE_FALSE(node.trainer.granted.empty());
  REQUIRE(node.trainer.capture_in(*node.engine, step));
}

std::size_t copies_of(Step step, const ReturningNode& node) {
  const auto status = nlohmann::json::parse(node.engine->status_json());
  for (const auto& one : status.at("jobs").at(0).at("steps"))
    if (one.at("step") == number(step)) return one.at("copies");
  return 0;
}

// Node A's daemon, as far as the test plays it.
struct Peer {
  explicit Peer(ReturningNodes& the_world) : world(the_world) {
    front = world.network.add_node("A", world.clock);
  }
  std::shared_ptr<wire::Connection> connect() {
    const Time soon = world.clock.after(std::chrono::seconds(3));
    auto connection =
        test::finish(world.clock, test::start(world.context, front->connect("B:1", soon)));
    REQUIRE(connection);
    wire::DialerOptions options;
    options.job = "job";
    options.node = "A";
    options.peer_node = "B";
    options.boot = 99;
    options.purpose = wire::Purpose::data;
    auto secret = wire::Secret::make(std::as_bytes(std::span(secret_of_both)));
    REQUIRE(secret);
    options.secret = std::make_shared<const wire::Secret>(std::move(*secret));
    options.make_nonce = wire::random_bytes;
    auto greeted = test::finish(
        world.clock,
        test::start(world.context, wire::greet_as_dialer(*connection, std::move(options), soon)));
    REQUIRE(greeted);
    return *connection;
  }
  wire::Message offer(wire::Connection& connection, const test::Shard& shard) {
    wire::Message message;
    message.kind = wire::FrameKind::offer;
    message.timeline = 1;
    message.body = format::encode(*shard.record);
    const Time soon = world.clock.after(std::chrono::seconds(3));
    REQUIRE(test::finish(
        world.clock,
        test::start(world.context, wire::write_message(connection, std::move(message), soon))));
    auto answer =
        test::finish(world.clock, test::start(world.context, wire::read_message(connection, soon)));
    REQUIRE(answer);
    return *answer;
  }

  ReturningNodes& world;
  std::unique_ptr<wire::Network> front;
};

}  // namespace

TEST_CASE("returned node: it gets its copy of the last step again, with nothing new captured",
          "[unit][node]") {
  ReturningNodes world;
  world.open(world.a, "A", 7);
  world.open(world.b, "B", 8);
  for (ReturningNode* node : {&world.a, &world.b})
    REQUIRE(node->engine->call(node->trainer.session, control::StartFresh{1}));
  REQUIRE(world.pass_until(
      [&] { return world.a.trainer.granted.size() >= 2 && world.b.trainer.granted.size() >= 2; }));
  capture(world.a, Step{1});
  capture(world.b, Step{1});
  REQUIRE(world.pass_until([&] { return world.a.trainer.committed == Step{1}; }));

  world.stop(world.b);
  world.network.kill("B");
  const std::uint64_t before = world.network.bytes_delivered("A", "B");
  world.b.trainer = ReturningTrainer{};
  world.open(world.b, "B", 9);
  CHECK(world.pass_until(
      [&] { return world.network.bytes_delivered("A", "B") >= before + returned_bytes; }));
}

// Else each lane to it would stand still for 10 s, one after the other.
TEST_CASE("returned node: dead connections that stay silent hold up no copy", "[unit][node]") {
  ReturningNodes world;
  test::SimNetworkOptions options;
  options.silence_one_in = 1;
  world.network.set_options(options);
  world.open(world.a, "A", 7);
  world.open(world.b, "B", 8);
  for (ReturningNode* node : {&world.a, &world.b})
    REQUIRE(node->engine->call(node->trainer.session, control::StartFresh{1}));
  for (const std::uint64_t step : {1, 2, 3, 4}) {
    REQUIRE(world.pass_until(
        [&] { return !world.a.trainer.granted.empty() && !world.b.trainer.granted.empty(); }));
    capture(world.a, Step{step});
    capture(world.b, Step{step});
    REQUIRE(world.pass_until([&] { return world.a.trainer.committed == Step{step}; }));
  }

  world.network.kill("B");
  world.stop(world.b);
  const std::uint64_t before = world.network.bytes_delivered("A", "B");
  world.b.trainer = ReturningTrainer{};
  world.open(world.b, "B", 9);
  const Time opened_at = world.clock.now();
  CHECK(world.pass_until(
      [&] { return world.network.bytes_delivered("A", "B") >= before + returned_bytes; }));
  CHECK(world.clock.now() - opened_at < std::chrono::seconds(8));
}

// B and C state nothing to each other, since A coordinates both.
TEST_CASE("returned node: it gets its copy from each peer, though none has missed it",
          "[unit][node]") {
  ReturningNodes world(1, "", 3);
  const auto all = {&world.a, &world.b, &world.c};
  world.open(world.a, "A", 7);
  world.open(world.b, "B", 8);
  world.open(world.c, "C", 9);
  for (ReturningNode* node : all)
    REQUIRE(node->engine->call(node->trainer.session, control::StartFresh{1}));
  REQUIRE(world.pass_until([&] {
    return std::ranges::all_of(all,
                               [](ReturningNode* it) { return it->trainer.granted.size() >= 2; });
  }));
  for (ReturningNode* node : all) capture(*node, Step{1});
  REQUIRE(world.pass_until([&] { return world.a.trainer.committed == Step{1}; }));

  world.network.kill("C");
  world.stop(world.c);
  const std::uint64_t before = world.network.bytes_delivered("B", "C");
  world.c.trainer = ReturningTrainer{};
  world.open(world.c, "C", 10);
  CHECK(world.pass_until(
      [&] { return world.network.bytes_delivered("B", "C") >= before + returned_bytes; }));
}

// The restored step is older than the committed one. Where the lines break when the first node
// begins with it, the other may be offered its copy before it hears of that.
TEST_CASE("returned node: a copy of a restored step is brought to a peer that hears of it later",
          "[unit][node]") {
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    ReturningNodes world(seed, "/job");
    world.open(world.a, "A", 7);
    world.open(world.b, "B", 8);
    const auto both = [&](auto claim) {
      return world.pass_until([&] { return claim(world.a.trainer) && claim(world.b.trainer); });
    };
    for (ReturningNode* node : {&world.a, &world.b})
      REQUIRE(node->engine->call(node->trainer.session, control::StartFresh{1}));
    for (const std::uint64_t step : {1, 2}) {
      REQUIRE(both([](ReturningTrainer& trainer) { return trainer.granted.size() >= 2; }));
      capture(world.a, Step{step});
      capture(world.b, Step{step});
      REQUIRE(both([&](ReturningTrainer& trainer) { return trainer.durable == Step{step}; }));
    }
    for (ReturningNode* node : {&world.a, &world.b}) {
      node->trainer.answer.reset();
      REQUIRE(node->engine->call(node->trainer.session, control::AskRestore{2, Step{1}}));
    }
    REQUIRE(world.pass_until([&] { return world.a.trainer.answer.has_value(); }));
    world.network.reset_streams("A", "B");
    REQUIRE(
        both([](ReturningTrainer& trainer) { return trainer.answer && trainer.answer->restored; }));
    CHECK(world.pass_until([&] { return copies_of(Step{1}, world.a) == 2; }));
  }
}

TEST_CASE("returned node: a shard that is being received is taken from nobody else",
          "[unit][node]") {
  ReturningNodes world;
  world.open(world.b, "B", 8);
  Peer peer(world);
  test::Shard shard(4);
  shard.record->job = "job";
  shard.record->run = world.run;
  shard.record->world_size = 2;
  const auto first = peer.connect();
  wire::Message answer = peer.offer(*first, shard);
  for (int attempt = 0; answer.kind == wire::FrameKind::refuse && attempt < 20; ++attempt) {
    world.clock.advance(std::chrono::seconds(1));  // The Slots for copies are being made.
    answer = peer.offer(*first, shard);
  }
  REQUIRE(answer.kind == wire::FrameKind::grant);

  const auto second = peer.connect();
  answer = peer.offer(*second, shard);
  REQUIRE(answer.kind == wire::FrameKind::refuse);
  CHECK(wire::decode_refusal(answer.body, "B").code() == Errc::unavailable);
  first->close();  // Then it may come over another connection.
  world.clock.advance(std::chrono::seconds(1));
  CHECK(peer.offer(*second, shard).kind == wire::FrameKind::grant);
}

}  // namespace ckpt::node
