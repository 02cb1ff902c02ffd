// Goal:   a waiting trainer learns which ranks it waits for, so that a missed deadline can say it.
//         Training goes on while it learns what storage lacks, and why a node is not reached.
// Method: an engine with one of a job's two ranks, which asks to restore; then the other comes.
//         A disk that answers nothing for a while. Two engines with two secrets.
#include <boost/asio/io_context.hpp>

#include "base/units.hpp"
#include "node/engine.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"
#include "unit/node/one_rank.hpp"
#include "unit/node/rank.hpp"

using Catch::Contains;

namespace ckpt::node {

TEST_CASE("notice: a rank that restores alone learns which ranks it waits for", "[unit][node]") {
  asio::io_context context;
  test::FakeClock clock(context);
  test::NoMemory memory;
  test::MemoryDisk disk(1);
  test::MemoryFileSystem files(disk, &clock);
  test::SimNetwork network(1);
  const auto front = network.add_node("A", clock);
  EngineOptions options;
  options.name = "A";
  options.memory_budget = MiB;
  Engine engine(context.get_executor(), Seams{clock, memory, files, *front}, options);
  const auto attach = [&](test::Rank& rank, std::uint32_t number) {
    AttachRequest request;
    request.job = "job";
    request.rank = number;
    request.world_size = 2;
    request.nodes = {{"A", "", ""}};
    request.node = "A";
    auto attached = test::finish(clock, test::start(context, engine.attach(request, rank)));
    REQUIRE(attached);
    rank.session = attached->session;
    REQUIRE(engine.call(rank.session, control::AskRestore{1, std::nullopt}));
    clock.advance(std::chrono::seconds(1));
  };

  test::Rank first, second;
  attach(first, 0);
  REQUIRE(first.notice.waiting == "rank 1 is not attached");
  REQUIRE_FALSE(first.answer);
  attach(second, 1);
  REQUIRE(first.answer);
  REQUIRE(first.notice.waiting.empty());
  REQUIRE(test::finish(clock, test::start(context, engine.stop(std::chrono::seconds(5)))));
  clock.advance(std::chrono::seconds(10));
}

TEST_CASE("notice: storage that hangs is reported, though it fails nothing", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.request.save_storage_interval.steps = 1;
  REQUIRE(rank.begin_fresh());
  disk.stall_until(rank.clock.after(std::chrono::seconds(90)));
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  rank.clock.advance(std::chrono::seconds(40));
  CHECK(rank.notice.degraded.empty());  // Slow, but nothing waits for it.
  rank.capture(Step{2});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{2}; }));
  rank.clock.advance(std::chrono::seconds(1));
  CHECK(rank.notice.degraded == "step 1 has been on its way to storage for 30 s, and more is due");
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{2}; }));
  rank.clock.advance(std::chrono::seconds(1));
  CHECK(rank.notice.degraded.empty());
}

namespace {

// Two nodes, each with one rank, which asks to restore.
struct NoticedNodes {
  struct Node {
    std::unique_ptr<wire::Network> front;
    std::unique_ptr<Engine> engine;
    test::Rank rank;
  };

  void ask_on(std::uint32_t number, const std::function<void(AttachRequest&)>& change) {
    Node& node = nodes[number];
    EngineOptions options;
    options.name = number == 0 ? "A" : "B";
    options.boot = 7 + number;
    options.memory_budget = MiB;
    node.front = network.add_node(options.name, clock);
    node.engine = std::make_unique<Engine>(context.get_executor(),
                                           Seams{clock, memory, files, *node.front}, options);
    AttachRequest request;
    request.job = "job";
    request.rank = number;
    request.world_size = 2;
    request.nodes = {{"A", "", "A:1"}, {"B", "", "B:1"}};
    request.node = options.name;
    request.secret = "the secret of both nodes, long enough to be one";
    change(request);
    auto attached =
        test::finish(clock, test::start(context, node.engine->attach(request, node.rank)));
    REQUIRE(attached);
    node.rank.session = attached->session;
    REQUIRE(node.engine->call(node.rank.session, control::AskRestore{1, std::nullopt}));
  }
  ~NoticedNodes() {
    for (Node& node : nodes)
      (void)test::finish(clock, test::start(context, node.engine->stop(std::chrono::seconds(5))));
    clock.advance(std::chrono::seconds(10));
  }

  asio::io_context context;
  test::FakeClock clock{context};
  test::NoMemory memory;
  test::MemoryDisk disk{1};
  test::MemoryFileSystem files{disk, &clock};
  test::SimNetwork network{1};
  Node nodes[2];
};

}  // namespace

TEST_CASE("notice: both trainers learn of a peer with another secret, not logs alone",
          "[unit][node]") {
  NoticedNodes two;
  for (std::uint32_t number : {0u, 1u}) {
    two.ask_on(number, [&](AttachRequest& request) {
      request.secret = fmt::format("the secret of node {}, long enough to be one", request.node);
    });
  }
  two.clock.advance(std::chrono::seconds(1));
  // A start may take a while.
  CHECK_THAT(two.nodes[0].rank.notice.waiting, !Contains("not reached"));
  two.clock.advance(std::chrono::seconds(30));
  CHECK_THAT(two.nodes[0].rank.notice.waiting,
             Contains("node B is not reached") && Contains("secret"));
  CHECK_THAT(two.nodes[1].rank.notice.waiting,
             Contains("node A is not reached") && Contains("secret"));
}

TEST_CASE("notice: all trainers learn which rank has no Slots, on which node, and why",
          "[unit][node]") {
  NoticedNodes two;
  two.ask_on(0, [](AttachRequest&) {});
  two.ask_on(1, [](AttachRequest&) {});
  NoticedNodes::Node& small = two.nodes[1];
  const format::TensorSpec weight{
      "weight", DType::u8, {8 * static_cast<std::int64_t>(MiB)}, "", ""};
  const auto layout = format::make_layout(std::span(&weight, 1), 1, 0).value();
  REQUIRE(small.engine->call(small.rank.session, control::SetLayout{layout}));
  two.clock.advance(std::chrono::seconds(1));
  REQUIRE(small.rank.no_slots);
  const std::string why = small.rank.no_slots->message();
  CHECK_THAT(why, Contains("may use"));
  for (const NoticedNodes::Node& node : two.nodes)
    CHECK(node.rank.notice.degraded == "node B: rank 1 has no Slots to save in: " + why);
  two.nodes[1].engine->detach(small.rank.session);
  two.clock.advance(std::chrono::seconds(1));
  CHECK_THAT(two.nodes[0].rank.notice.degraded, !Contains("Slots"));
}

TEST_CASE("notice: nodes with different members both say so", "[unit][node]") {
  NoticedNodes two;
  SECTION("another number of copies") {
    two.ask_on(0, [](AttachRequest&) {});
    two.ask_on(1, [](AttachRequest& request) { request.replicas = 1; });
    two.clock.advance(std::chrono::seconds(1));
    for (const NoticedNodes::Node& node : two.nodes) {
      CHECK_THAT(node.rank.notice.waiting + node.rank.notice.degraded,
                 Contains("has another list of the job's members") && Contains("replicas"));
    }
  }
  SECTION("another directory") {
    two.disk.put_directory("/scratch");
    two.ask_on(0, [](AttachRequest& request) { request.dir = "/scratch/job"; });
    two.ask_on(1, [](AttachRequest&) {});
    two.clock.advance(std::chrono::seconds(1));
    for (const NoticedNodes::Node& node : two.nodes)
      CHECK_THAT(node.rank.notice.degraded, Contains("another run of the job"));
  }
  SECTION("a list that is out of date") {
    two.ask_on(0, [](AttachRequest&) {});
    two.ask_on(1, [](AttachRequest& request) { request.incarnation = 2; });
    two.clock.advance(std::chrono::seconds(1));
    CHECK_THAT(two.nodes[0].rank.notice.degraded,
               Contains("node B has incarnation 2 of the list of nodes, A has 0"));
    CHECK_THAT(two.nodes[1].rank.notice.degraded,
               Contains("node A has incarnation 0 of the list of nodes, B has 2"));
  }
}

}  // namespace ckpt::node
