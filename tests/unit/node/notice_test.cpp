// Goal:   a trainer that waits is told for whom, so that a deadline that passes can say it.
// Method: an engine with one of a job's two ranks, which asks to restore; then the other comes.
#include <boost/asio/io_context.hpp>

#include "base/units.hpp"
#include "node/engine.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"
#include "unit/node/rank.hpp"

namespace ckpt::node {

TEST_CASE("notice: a rank that restores alone is told whom it waits for", "[unit][node]") {
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
    REQUIRE(engine.ask_restore(rank.session, std::nullopt));
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

}  // namespace ckpt::node
