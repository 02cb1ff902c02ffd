// Goal:   a job that was closed in order keeps its name from nobody: the next run of that name
//         begins at once, in whatever directory. One that was not closed keeps what it holds.
// Method: engines on a disk in memory; a run ends, and another with another directory attaches
//         while no time, or a known time, has passed.
#include "unit/node/hosts.hpp"
#include "unit/node/two_steps.hpp"

namespace ckpt::node {
namespace {

const std::string other = "/scratch/other";
const test::Hosts::Names names{"A", "B", "C"};
const std::vector<std::size_t> order{0, 1, 2};

Status attach_elsewhere(test::OneRank& rank) {
  rank.request.dir = other;
  return rank.attach_only();
}

void close_all(test::Hosts& hosts) {
  for (std::size_t host = 0; host < hosts.ranks.size(); ++host)
    REQUIRE(hosts.engines[host]->call(hosts.ranks[host].session,
                                      control::Close{std::chrono::seconds(60)}));
  REQUIRE(hosts.pass_until([&] {
    return std::all_of(hosts.ranks.begin(), hosts.ranks.end(),
                       [](const test::Rank& rank) { return rank.end.has_value(); });
  }));
  hosts.detach_all();
}

// How long the rank of another run has to wait for its node.
Duration wait_for_node(test::Hosts& hosts, std::uint32_t rank) {
  const Time before = hosts.clock.now();
  while (hosts.clock.now() - before < std::chrono::minutes(1)) {
    const Status attached = hosts.attach(rank, names, order, other);
    if (attached) break;
    REQUIRE(attached.error().code() == Errc::unavailable);
    hosts.clock.advance(std::chrono::milliseconds(100));
  }
  return hosts.clock.now() - before;
}

}  // namespace

TEST_CASE("closed job: the next run of its name begins elsewhere at once", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  close(rank);
  rank.engine->detach(rank.session);
  const Status attached = attach_elsewhere(rank);
  REQUIRE((attached ? "" : attached.error().message()) == "");
  CHECK(disk.exists(other + "/.libckpt/run.json"));
}

TEST_CASE("closed job: while its newest step is stored the next run is asked to wait",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  disk.set_latency(std::chrono::seconds(1), std::chrono::seconds(1));
  REQUIRE(rank.engine->call(rank.session, control::Close{std::chrono::seconds(60)}));
  rank.engine->detach(rank.session);  // It does not wait for the end.
  const Status refused = attach_elsewhere(rank);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::unavailable);
  CHECK(refused.error().text().find("was closed, and is not over yet") != std::string::npos);
  REQUIRE(rank.pass_until([&] { return attach_elsewhere(rank).has_value(); }));
  CHECK(disk.exists("/scratch/job/step-000000001/manifest.json"));
}

TEST_CASE("closed job: a run that was killed keeps its name and what it holds", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  rank.engine->detach(rank.session);
  rank.clock.advance(std::chrono::minutes(1));
  const Status refused = attach_elsewhere(rank);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  rank.request.dir = "/scratch/job";
  CHECK(rank.restore().value() == Step{1});
}

TEST_CASE("closed job: a session that did not train does not free steps in memory alone",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  SECTION("without a directory it stays") {
    rank.request.dir.clear();
  }
  SECTION("with one it is stored") {}
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  rank.engine->detach(rank.session);  // It died.
  REQUIRE(rank.attach_only());
  close(rank);
  rank.engine->detach(rank.session);
  rank.clock.advance(std::chrono::minutes(1));
  CHECK(rank.restore().value() == Step{1});
}

TEST_CASE("closed job: a trainer that was refused leaves no job behind", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.request.rank = 5;  // Of one.
  REQUIRE_FALSE(rank.attach_only());
  rank.request.rank = 0;
  REQUIRE(rank.pass_until([&] { return attach_elsewhere(rank).has_value(); }));
}

TEST_CASE("closed job: several nodes make way as soon as all have heard of the end",
          "[unit][node]") {
  test::Hosts hosts({"left", "middle", "right"});
  REQUIRE(hosts.begin(names, order, "/scratch/job"));
  close_all(hosts);
  for (const std::uint32_t rank : {0, 1, 2})
    CHECK(wait_for_node(hosts, rank) <= std::chrono::seconds(1));
}

TEST_CASE("closed job: a node that does not hear of the end holds the others up for seconds only",
          "[unit][node]") {
  test::Hosts hosts({"left", "middle", "right"});
  REQUIRE(hosts.begin(names, order, "/scratch/job"));
  for (std::size_t host = 0; host < hosts.ranks.size(); ++host)
    REQUIRE(hosts.engines[host]->call(hosts.ranks[host].session,
                                      control::Close{std::chrono::seconds(20)}));
  const auto has_ended = [&] { return hosts.ranks[0].end.has_value(); };
  hosts.network.partition_one_way("left", "right");  // It reports, and hears nothing.
  REQUIRE(hosts.pass_until(has_ended));
  hosts.detach_all();
  const Duration waited = wait_for_node(hosts, 0);
  CHECK(waited > std::chrono::seconds(1));
  CHECK(waited < std::chrono::seconds(7));
}

}  // namespace ckpt::node
