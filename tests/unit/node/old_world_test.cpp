// Goal:   another number of ranks whose Slots do not fit beside the restored step trains and saves
//         all the same where storage has the step, and is refused, with the numbers, where not.
// Method: three ranks, then two on the same node, with a budget that holds each world alone.
#include <catch2/catch.hpp>

#include "support/captured_log.hpp"
#include "unit/node/worlds.hpp"

namespace ckpt::node {

using test::Cluster;
using test::Rules;

TEST_CASE("old world: a stored step gives way to the Slots of the new ranks", "[unit][node]") {
  const test::CapturedLog log(LogLevel::warning);
  Rules rules;
  rules.directory = "/scratch";
  rules.replicas = 1;
  // The second one leaves no room for the restore either, before free Slots have gone.
  rules.budget = GENERATE(530, 500) * KiB;
  Cluster cluster;
  cluster.begin("AAA", rules);
  cluster.store(Step{5});
  cluster.begin("AA", rules);
  cluster.check_restored(Step{5}, 3);
  cluster.commit(Step{6});
  cluster.commit(Step{7});
  CHECK(log.has("in memory gives way to the Slots of 2 ranks"));
  CHECK(cluster.status("A").at("degraded").is_null());
  cluster.begin("AA", rules);
  cluster.check_restored(Step{7}, 2);
}

TEST_CASE("old world: a step that storage has not is not given up", "[unit][node]") {
  const test::CapturedLog quiet(LogLevel::error);
  Rules rules;
  rules.replicas = 1;
  rules.budget = 400 * KiB;
  Cluster cluster;
  cluster.begin("AAA", rules);
  cluster.commit(Step{5});
  cluster.ask("AA", rules);
  REQUIRE(cluster.pass_until([&] { return cluster.have_answers(); }));
  REQUIRE_FALSE(cluster.rank(0).answer->result);
  const Error error = cluster.rank(0).answer->result.error();
  INFO(error.message());
  CHECK(error.code() == Errc::exhausted);
  CHECK(error.text().find("may use 400.0 KiB") != std::string::npos);
  CHECK(error.text().find("144.0 KiB by step 5") != std::string::npos);
  CHECK(error.text().find("0 B by other jobs") != std::string::npos);
  const nlohmann::json degraded = cluster.status("A").at("degraded");
  REQUIRE(degraded.is_string());
  CHECK(degraded.get<std::string>().find("has no Slots to save in") != std::string::npos);
  cluster.begin("AAA", rules);
  cluster.check_restored(Step{5}, 3);
}

TEST_CASE("old world: free Slots without a trainer give way", "[unit][node]") {
  Rules rules;
  rules.replicas = 1;
  rules.budget = 400 * KiB;  // With those of the rank that does not come back it would be 460.
  Cluster cluster;
  cluster.begin("AA", rules);
  cluster.commit(Step{5});
  cluster.begin("A", rules);
  cluster.check_restored(Step{5}, 2);
  cluster.commit(Step{6});
}

}  // namespace ckpt::node
