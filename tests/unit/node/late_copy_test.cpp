// Goal:   copies that do not arrive while heartbeats do are reported, until they arrive.
// Method: two engines, each with one rank, over a network that damages all but small pieces, or
//         carries so few bytes in a second that a shard takes minutes.
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include "base/units.hpp"
#include "node/engine.hpp"
#include "support/heap_memory.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_compute.hpp"
#include "support/sim_network.hpp"
#include "unit/node/rank.hpp"

using Catch::Contains;

namespace ckpt::node {
namespace {

struct TwoTrainers {
  struct Node {
    std::unique_ptr<wire::Network> front;
    std::unique_ptr<test::SimCompute> compute;
    std::unique_ptr<Engine> engine;
    test::Rank trainer;
  };

  explicit TwoTrainers(std::uint64_t with_replica_rate = 0) : replica_rate(with_replica_rate) {
    for (const std::uint32_t number : {0u, 1u}) attach(number);
    REQUIRE(pass_until([&](Node& node) { return node.trainer.granted.size() >= 2; }));
  }
  ~TwoTrainers() {
    for (Node& node : nodes)
      (void)test::finish(clock, test::start(context, node.engine->stop(std::chrono::seconds(5))));
    clock.advance(std::chrono::seconds(10));
  }

  void attach(std::uint32_t number) {
    Node& node = nodes[number];
    EngineOptions options;
    options.name = number == 0 ? "A" : "B";
    options.boot = 7 + number;
    options.memory_budget = 128 * MiB;
    node.front = network.add_node(options.name, clock);
    node.compute = std::make_unique<test::SimCompute>(clock, options.boot);
    const Seams seams{clock, memory, files, *node.front, node.compute.get()};
    node.engine = std::make_unique<Engine>(context.get_executor(), seams, options);
    AttachRequest request;
    request.job = "job";
    request.rank = number;
    request.world_size = 2;
    request.nodes = {{"A", "", "A:1"}, {"B", "", "B:1"}};
    request.node = options.name;
    request.own_slots = 4;
    request.replica_rate = replica_rate;
    request.secret = "the secret of both nodes, long enough to be one";
    auto attached =
        test::finish(clock, test::start(context, node.engine->attach(request, node.trainer)));
    REQUIRE(attached);
    node.trainer.session = attached->session;
    const format::TensorSpec spec{"weight", DType::u8, {4 * MiB}, "", ""};
    auto layout = format::make_layout(std::span(&spec, 1), number, 0, 1);
    REQUIRE(layout);
    REQUIRE(node.engine->call(node.trainer.session, control::SetLayout{*layout}));
    REQUIRE(node.engine->call(node.trainer.session, control::StartFresh{1}));
  }
  void capture(Step step) {
    for (Node& node : nodes) {
      REQUIRE_FALSE(node.trainer.granted.empty());
      REQUIRE(node.trainer.capture_in(*node.engine, step));
    }
  }
  template <class Claim>
  bool pass_until(Claim claim) {
    const auto all = [&] { return claim(nodes[0]) && claim(nodes[1]); };
    const Time limit = clock.after(std::chrono::minutes(20));
    clock.poll();
    while (!all() && clock.now() < limit && clock.advance_to_next()) {
    }
    return all();
  }
  void pass(std::chrono::seconds time) {
    for (; time.count() > 0; --time) clock.advance(std::chrono::seconds(1));
  }
  const std::string& degraded(std::size_t node) const {
    return nodes[node].trainer.notice.degraded;
  }

  const std::uint64_t replica_rate;
  asio::io_context context;
  test::FakeClock clock{context};
  test::HeapSource memory;
  test::MemoryDisk disk{1};
  test::MemoryFileSystem files{disk, &clock};
  test::SimNetwork network{1};
  Node nodes[2];
};

void require_copies_arrive(TwoTrainers& two, Step step) {
  two.network.set_options({});
  REQUIRE(two.pass_until([&](auto& node) { return node.trainer.committed == step; }));
  two.pass(std::chrono::seconds(2));
  CHECK(two.degraded(0).empty());
  CHECK(two.degraded(1).empty());
}

}  // namespace

TEST_CASE("late copy: copies that fail again and again are reported, until they arrive",
          "[unit][node]") {
  TwoTrainers two;
  test::SimNetworkOptions options;
  options.flip_one_in = 1;
  options.flip_bytes_min = 4000;
  two.network.set_options(options);
  two.capture(Step{1});
  two.pass(std::chrono::seconds(25));
  CHECK(two.degraded(0).empty());
  two.pass(std::chrono::seconds(7));
  CHECK_THAT(two.degraded(0),
             Contains("the copy of step 1 to node B has been under way for 30 s: "));
  CHECK_THAT(two.degraded(1), Contains("the copy of step 1 to node A has been under way for 30 s"));
  two.pass(std::chrono::seconds(30));
  CHECK_THAT(two.degraded(0), Contains("has been under way for 60 s"));
  require_copies_arrive(two, Step{1});
}

TEST_CASE("late copy: a slow one is reported when the next step waits for it", "[unit][node]") {
  TwoTrainers two;
  test::SimNetworkOptions options;
  options.bytes_per_second = 64 * KiB;
  options.piece_bytes_max = 4 * KiB;
  two.network.set_options(options);
  two.capture(Step{1});
  two.pass(std::chrono::seconds(40));
  CHECK(two.degraded(0).empty());  // Slow, but nothing waits for it.
  two.capture(Step{2});
  two.pass(std::chrono::seconds(2));
  CHECK(two.degraded(0) == "the copy of step 1 to node B has been under way for 30 s");
  CHECK(two.degraded(1) == "the copy of step 1 to node A has been under way for 30 s");
  require_copies_arrive(two, Step{2});
}

TEST_CASE("copies: they keep to replica_rate, but for the last ones of a job", "[unit][node]") {
  TwoTrainers two(MiB);
  Time began = two.clock.now();
  two.capture(Step{1});
  REQUIRE(two.pass_until([&](auto& node) { return node.trainer.committed == Step{1}; }));
  CHECK(two.clock.now() - began > std::chrono::milliseconds(3'500));  // Four MiB, less a piece.
  CHECK(two.clock.now() - began < std::chrono::seconds(6));
  CHECK_THAT(two.nodes[0].engine->status_json(), Contains("\"replica_rate\": 1048576"));
  began = two.clock.now();
  two.capture(Step{2});
  for (auto& node : two.nodes)
    REQUIRE(node.engine->call(node.trainer.session, control::Close{std::chrono::seconds(60)}));
  REQUIRE(two.pass_until([&](auto& node) { return node.trainer.committed == Step{2}; }));
  CHECK(two.clock.now() - began < std::chrono::seconds(1));
}

// A capture of 4 MiB and its header are two Chunks. To seal it, one checksum for each; for the copy
// of the other's, one for each MiB of the first Chunk, and one for the second.
TEST_CASE("late copy: the hash threads verify the Chunks that arrive", "[unit][node]") {
  TwoTrainers two;
  two.capture(Step{1});
  REQUIRE(two.pass_until([](auto& node) { return node.trainer.committed == Step{1}; }));
  CHECK(two.nodes[0].compute->runs() == 2 + 4 + 1);
  CHECK(two.nodes[1].compute->runs() == 2 + 4 + 1);
}

}  // namespace ckpt::node
