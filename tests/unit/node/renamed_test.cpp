// Goal:   nodes that get other names while their daemons live agree, begin and copy as before: each
//         list of nodes says anew who is who.
// Method: three engines over the simulated network and a fake clock; their ranks begin again and
//         again, each time with other names for the same hosts.
#include <boost/asio/io_context.hpp>

#include "base/units.hpp"
#include "node/engine.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"
#include "unit/node/rank.hpp"

namespace ckpt::node {
namespace {

using test::NoMemory;
using test::Rank;
using Names = std::vector<std::string>;  // By host.

struct Hosts {
  Hosts() : clock(context), disk(1), files(disk, &clock), network(1) {
    for (const std::string& host : hosts) {
      fronts.push_back(network.add_node(host, clock));
      EngineOptions options;
      options.name = host;
      options.boot = 7 + fronts.size();
      options.memory_budget = MiB;
      engines.push_back(std::make_unique<Engine>(
          context.get_executor(), Seams{clock, memory, files, *fronts.back()}, options));
    }
  }
  ~Hosts() {
    for (const auto& engine : engines) {
      CHECK(test::finish(clock, test::start(context, engine->stop(std::chrono::seconds(5)))));
    }
    engines.clear();
    clock.advance(std::chrono::seconds(10));  // What still slept sees that it is over.
  }

  // Each host has one rank, and all ask for the newest step, of which there is none. The list has
  // the hosts in this order, which decides who coordinates. True: all have begun in one timeline.
  bool begin(const Names& names, std::vector<std::size_t> order) {
    ++incarnation;
    std::vector<Rank> ranks(hosts.size());
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      AttachRequest request;
      request.job = "job";
      request.rank = rank;
      request.world_size = static_cast<std::uint32_t>(hosts.size());
      for (const std::size_t host : order)
        request.nodes.push_back({names[host], "", hosts[host] + ":1"});
      request.node = names[rank];
      request.incarnation = incarnation;
      request.secret = "the secret of the job, 32 bytes.";
      auto attached =
          test::finish(clock, test::start(context, engines[rank]->attach(request, ranks[rank])));
      REQUIRE(attached);
      ranks[rank].session = attached->session;
      REQUIRE(engines[rank]->ask_restore(ranks[rank].session, 1, std::nullopt));
    }
    const auto have_begun = [&] {
      return std::all_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.answer; });
    };
    const Time limit = clock.after(std::chrono::seconds(60));
    while (clock.now() < limit && !have_begun()) clock.advance_to_next();
    const bool began = have_begun();
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      if (began) CHECK(ranks[rank].answer->timeline == ranks[0].answer->timeline);
      engines[rank]->detach(ranks[rank].session);
    }
    return began;
  }

  const std::vector<std::string> hosts{"left", "middle", "right"};
  std::uint64_t incarnation = 0;
  asio::io_context context;
  test::FakeClock clock;
  NoMemory memory;
  test::MemoryDisk disk;
  test::MemoryFileSystem files;
  test::SimNetwork network;
  std::vector<std::unique_ptr<wire::Network>> fronts;
  std::vector<std::unique_ptr<Engine>> engines;
};

}  // namespace

TEST_CASE("renamed: nodes with new names begin again", "[unit][node]") {
  Hosts hosts;
  REQUIRE(hosts.begin({"A", "B", "C"}, {0, 1, 2}));
  CHECK(hosts.begin({"X", "Y", "Z"}, {0, 1, 2}));
  CHECK(hosts.begin({"A", "B", "C"}, {0, 1, 2}));
}

TEST_CASE("renamed: nodes that swap their names begin again", "[unit][node]") {
  Hosts hosts;
  REQUIRE(hosts.begin({"A", "B", "C"}, {0, 1, 2}));
  CHECK(hosts.begin({"B", "C", "A"}, {2, 0, 1}));
  CHECK(hosts.begin({"C", "B", "A"}, {0, 1, 2}));
  CHECK(hosts.begin({"A", "B", "C"}, {1, 0, 2}));
}

}  // namespace ckpt::node
