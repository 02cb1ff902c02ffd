// Goal:   a job whose memory was dropped on one node begins there again with its peers, at once,
//         and what is left of it elsewhere outlives the engine safely.
// Method: two engines over the simulated network and a fake clock; the ranks begin some times, so
//         that reports and decrees have high numbers; then one node forgets the job, and they begin
//         once more. The node's reports of now must not be taken for old ones.
#include <boost/asio/io_context.hpp>
#include <optional>

#include "base/units.hpp"
#include "node/engine.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"
#include "unit/node/rank.hpp"

namespace ckpt::node {
namespace {

using test::NoMemory;

struct DroppedJobNodes {
  DroppedJobNodes() : clock(context), disk(1), files(disk, &clock), network(1) {
    for (const char* name : {"A", "B"}) {
      fronts.push_back(network.add_node(name, clock));
      EngineOptions options;
      options.name = name;
      options.boot = 7 + fronts.size();
      options.memory_budget = MiB;
      engines.push_back(std::make_unique<Engine>(
          context.get_executor(), Seams{clock, memory, files, *fronts.back()}, options));
    }
  }
  ~DroppedJobNodes() {
    end_engines();
    clock.advance(std::chrono::seconds(10));  // Sleeping coroutines see that it is over.
  }

  void end_engines() {
    for (const auto& engine : engines) {
      const Status stopped =
          test::finish(clock, test::start(context, engine->stop(std::chrono::seconds(5))));
      CHECK(stopped);
    }
    engines.clear();
  }

  // Both ranks attach and ask for the newest step, of which there is none. How long that took.
  std::optional<Duration> begin_once() {
    const Time before = clock.now();
    std::vector<test::Rank> ranks(engines.size());
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      AttachRequest request;
      request.job = "job";
      request.rank = rank;
      request.world_size = 2;
      request.nodes = {{"A", "", "A:1"}, {"B", "", "B:1"}};
      request.node = request.nodes[rank].name;
      request.secret = "the secret of the job, 32 bytes.";
      auto attached =
          test::finish(clock, test::start(context, engines[rank]->attach(request, ranks[rank])));
      REQUIRE(attached);
      ranks[rank].session = attached->session;
      REQUIRE(engines[rank]->call(ranks[rank].session, control::AskRestore{1, std::nullopt}));
    }
    const Time limit = clock.after(std::chrono::seconds(60));
    while (clock.now() < limit && !(ranks[0].answer && ranks[1].answer)) clock.advance_to_next();
    const bool have_begun = ranks[0].answer.has_value() && ranks[1].answer.has_value();
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank)
      engines[rank]->detach(ranks[rank].session);
    clock.advance(std::chrono::seconds(2));
    if (!have_begun) return std::nullopt;
    return clock.now() - before;
  }

  asio::io_context context;
  test::FakeClock clock;
  NoMemory memory;
  test::MemoryDisk disk;
  test::MemoryFileSystem files;
  test::SimNetwork network;
  std::vector<std::unique_ptr<wire::Network>> fronts;
  std::vector<std::unique_ptr<Engine>> engines;
};

TEST_CASE("job: a node that dropped it begins again with a peer that did not", "[unit][node]") {
  const std::size_t dropping = GENERATE(0, 1);  // The coordinator, and the other.
  DroppedJobNodes nodes;
  for (int round = 0; round < 8; ++round) REQUIRE(nodes.begin_once());
  REQUIRE(nodes.engines[dropping]->drop("job"));
  nodes.clock.advance(std::chrono::seconds(1));
  const auto took = nodes.begin_once();
  REQUIRE(took);
  REQUIRE(*took < std::chrono::seconds(10));
}

TEST_CASE("job: one that was dropped may end after its engine", "[unit][node]") {
  const int passed_ms = GENERATE(0, 300, 600, 900, 1200, 1500, 1800);
  DroppedJobNodes nodes;
  REQUIRE(nodes.begin_once());
  // A dials B in vain, more and more seldom: what waits to dial again holds the job.
  REQUIRE(nodes.engines[1]->drop("job"));
  nodes.clock.advance(std::chrono::minutes(1) + std::chrono::milliseconds(passed_ms));
  REQUIRE(nodes.engines[0]->drop("job"));
  nodes.end_engines();
  // A sanitizer sees whether the job, which ends here, uses anything that was the engine's.
  nodes.clock.advance(std::chrono::minutes(1));
}

}  // namespace
}  // namespace ckpt::node
