// Goal:   nodes send the copies of steps in the order of the steps, whichever was sealed first:
// else
//         some targets would have room for one step, others for another, and none is committed.
// Method: two nodes, of which each has room for one copy that is not committed. A rank's older step
//         is sealed behind its newer one.
#include "unit/node/worlds.hpp"

namespace ckpt::test {

TEST_CASE("copy order: a step that is sealed late goes before the one behind it", "[unit][node]") {
  Cluster cluster;
  Rules rules;
  rules.directory = "/scratch/job";  // With it each rank has three Slots.
  cluster.begin("AB", rules);
  cluster.commit(Step{1});
  REQUIRE(cluster.pass_until([&] { return cluster.rank(0).granted.size() >= 2; }));
  const std::uint32_t slot = cluster.begin_capture(cluster.rank(0), Step{2});
  cluster.capture(cluster.rank(1), Step{2});
  cluster.capture(cluster.rank(0), Step{3});
  REQUIRE(cluster.pass_until([&] { return !cluster.rank(1).granted.empty(); }));
  cluster.capture(cluster.rank(1), Step{3});
  // B could have taken step 3 by now.
  const Time later = cluster.now() + std::chrono::seconds(5);
  (void)cluster.pass_until([&] { return cluster.now() > later; });
  cluster.fill(cluster.rank(0), slot, Step{2});
  CHECK(cluster.pass_until([&] { return cluster.rank(0).committed == Step{3}; }));
}

}  // namespace ckpt::test
