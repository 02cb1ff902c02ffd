// Goal:   as many ranks as before, in another order, get from memory and from storage what they
//         declare, whoever had it; ranks that contradicted each other when they saved end a restore
//         at once, and are named when the step is stored.
// Method: engines of several nodes on a simulated network. Besides its part of a tensor, each rank
//         has a whole tensor that is named after its stage; the stages change their ranks.
#include <catch2/catch.hpp>

#include "support/captured_log.hpp"
#include "unit/node/worlds.hpp"

namespace ckpt::node {

using Catch::Matchers::Contains;
using test::Cluster;
using test::Rules;

namespace {

Rules with_stages(std::vector<std::uint32_t> stages) {
  Rules rules;
  rules.has_whole_tensors = true;
  rules.stages = std::move(stages);
  return rules;
}

// Each rank got the tensor of its stage.
void check_stages(Cluster& cluster, const std::vector<std::uint32_t>& stages) {
  for (std::uint32_t rank = 0; rank < stages.size(); ++rank) {
    CAPTURE(rank);
    const auto& tensors = cluster.rank(rank).whole_tensors;
    const auto it = tensors.find("of rank " + std::to_string(stages[rank]));
    REQUIRE(it != tensors.end());
    CHECK(it->second == std::vector<std::uint32_t>(256, 1000 * stages[rank] + 7));
  }
}

}  // namespace

TEST_CASE("other order: stages that swap their ranks get their tensors from memory",
          "[unit][node]") {
  const test::CapturedLog log(LogLevel::warning);
  Cluster cluster;
  cluster.begin("AB", with_stages({0, 1}));
  cluster.commit(Step{5});
  SECTION("on the same nodes") {
    cluster.begin("AB", with_stages({1, 0}));
  }
  SECTION("where one node is lost") {
    cluster.lose("B");
    cluster.begin("AC", with_stages({1, 0}));
    CHECK(cluster.rank(1).offer->source == RestoreSource::peer_memory);
  }
  cluster.check_restored(Step{5}, 2);
  check_stages(cluster, {1, 0});
  CHECK_FALSE(log.has("not restored"));
  // They go on, and swap once more.
  cluster.commit(Step{6});
  cluster.begin("AB", with_stages({0, 1}));
  cluster.check_restored(Step{6}, 2);
  check_stages(cluster, {0, 1});
}

TEST_CASE("other order: four stages go round, from storage alone", "[unit][node]") {
  Cluster cluster;
  Rules rules = with_stages({0, 1, 2, 3});
  rules.directory = "/scratch";
  cluster.begin("AABB", rules);
  cluster.store(Step{5});
  rules.stages = {3, 0, 1, 2};
  rules.source = SourceChoice::storage;
  cluster.begin("AABB", rules);
  cluster.check_restored(Step{5}, 4);
  check_stages(cluster, rules.stages);
  CHECK(cluster.rank(0).offer->source == RestoreSource::storage);
}

TEST_CASE("other order: a tensor that no rank saved is named at once", "[unit][node]") {
  const test::CapturedLog log(LogLevel::info);
  Cluster cluster;
  cluster.begin("AB", with_stages({0, 1}));
  cluster.commit(Step{5});
  cluster.ask("AB", with_stages({0, 7}));
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    REQUIRE_FALSE(cluster.rank(rank).answer->result);
    const Error error = cluster.rank(rank).answer->result.error();
    CHECK(error.code() == Errc::invalid_argument);
    CHECK_THAT(error.message(), Contains("tensor \"of rank 7\" is in no shard"));
  }
  CHECK_FALSE(log.has("attempt=2"));
}

TEST_CASE("other order: ranks that contradict each other end a restore at once", "[unit][node]") {
  const test::CapturedLog log(LogLevel::info);
  Cluster cluster;
  Rules rules;
  rules.contradicts = 1;
  cluster.begin("AB", rules);
  cluster.commit(Step{5});
  rules.contradicts.reset();
  cluster.ask("A", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  REQUIRE_FALSE(cluster.rank(0).answer->result);
  const Error error = cluster.rank(0).answer->result.error();
  CHECK(error.code() == Errc::invalid_argument);
  CHECK_THAT(error.message(), Contains("tensor \"weight\" is U32 [30720] as rank 0 saved it, and "
                                       "U32 [30721] as rank 1 did"));
  CHECK_FALSE(log.has("attempt=2"));
}

TEST_CASE("other order: ranks that contradict each other are named when a step is stored",
          "[unit][node]") {
  const test::CapturedLog log(LogLevel::warning);
  Cluster cluster;
  Rules rules;
  rules.directory = "/scratch";
  rules.contradicts = 1;
  cluster.begin("AB", rules);
  cluster.store(Step{5});
  const std::string words = "U32 [30720] as rank 0 saved it, and U32 [30721] as rank 1 did";
  REQUIRE(cluster.pass_until([&] { return !cluster.status("A")["missing_pieces"].is_null(); }));
  const nlohmann::json status = cluster.status("A");
  CHECK_THAT(status["degraded"].get<std::string>(), Contains(words));
  CHECK_THAT(status["missing_pieces"]["contradiction"].get<std::string>(), Contains(words));
  CHECK(log.has(words));
}

}  // namespace ckpt::node
