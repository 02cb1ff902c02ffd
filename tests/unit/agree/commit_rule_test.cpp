// Goal:   a step is committed when, and only when, every rank's shard is as safe as asked for; a
// step
//         that a rank skipped is given up, and the ranks meet again at a later one.
// Method: small clusters with holdings set by hand, one condition changed at a time.
#include "agree/commit_rule.hpp"

#include <catch2/catch.hpp>

#include "agree/capture_rule.hpp"
#include "unit/agree/scene.hpp"

using namespace ckpt;
using ckpt::test::Scene;

TEST_CASE("commit: copies of every rank in two domains commit a step", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 5);
  REQUIRE(agree::newest_committable(scene.view, 1) == format::StepId{1, Step{5}});
}

TEST_CASE("commit: one rank without its second copy holds the step back", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  scene.hold(0, 1, 5, 0);
  scene.hold(1, 1, 5, 0);
  scene.hold(1, 1, 5, 1);
  REQUIRE(agree::newest_committable(scene.view, 1) == format::StepId{1, Step{4}});
}

TEST_CASE("commit: a missing rank is never made up for by copies of another", "[unit][agree]") {
  Scene scene(2);
  scene.hold(0, 1, 5, 0);
  scene.hold(1, 1, 5, 0);
  REQUIRE_FALSE(agree::newest_committable(scene.view, 1).has_value());
}

TEST_CASE("commit: a lost domain degrades the job and does not freeze it", "[unit][agree]") {
  Scene scene(2);
  // Both ranks' shards are on A; B is lost.
  scene.hold(0, 1, 5, 0);
  scene.hold(0, 1, 5, 1);
  REQUIRE_FALSE(agree::newest_committable(scene.view, 1).has_value());
  scene.lose(1);
  REQUIRE(agree::newest_committable(scene.view, 1) == format::StepId{1, Step{5}});
}

TEST_CASE("commit: a node that may still come counts as alive", "[unit][agree]") {
  Scene scene(2);
  scene.hold(0, 1, 5, 0);
  scene.hold(0, 1, 5, 1);
  scene.view.reports.pop_back();
  REQUIRE(agree::required_copies(scene.view) == 2);
  REQUIRE_FALSE(agree::newest_committable(scene.view, 1).has_value());
}

TEST_CASE("commit: two nodes of one domain are one copy", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 5);
  scene.view.shape.nodes[0].failure_domain = "rack";
  scene.view.shape.nodes[1].failure_domain = "rack";
  REQUIRE(agree::required_copies(scene.view) == 1);
  scene.view.shape.nodes.push_back({"C", "other", "C:1"});
  scene.view.expected.push_back("C");
  REQUIRE(agree::required_copies(scene.view) == 2);
  REQUIRE_FALSE(agree::newest_committable(scene.view, 1).has_value());
}

TEST_CASE("commit: copies whose digests differ are not copies of one another", "[unit][agree]") {
  Scene scene(2);
  scene.hold(0, 1, 5, 0, 7);
  scene.hold(1, 1, 5, 0, 9);
  scene.hold(1, 1, 5, 1);
  scene.hold(0, 1, 5, 1);
  REQUIRE_FALSE(agree::newest_committable(scene.view, 1).has_value());
}

TEST_CASE("commit: another timeline's steps are not committed", "[unit][agree]") {
  Scene scene(1);
  scene.view.shape.replicas = 1;
  scene.hold_everywhere(1, 9);
  REQUIRE_FALSE(agree::newest_committable(scene.view, 2).has_value());
}

TEST_CASE("skip: a step that one rank went past is given up by all", "[unit][agree]") {
  Scene scene(2);
  scene.train(1, 5);
  scene.hold(0, 1, 5, 0);
  const auto dropped = agree::given_up(scene.view, 1, std::nullopt);
  REQUIRE(dropped == std::vector<format::StepId>{{1, Step{5}}});
}

TEST_CASE("skip: a rank that is only late loses nobody a step", "[unit][agree]") {
  Scene scene(2);
  scene.train(1, 5);
  scene.hold(0, 1, 5, 0);
  scene.rank(1).last_seen = Step{4};
  REQUIRE(agree::given_up(scene.view, 1, std::nullopt).empty());
  scene.rank(1).last_seen = Step{5};
  scene.rank(1).filling.push_back({1, Step{5}});
  REQUIRE(agree::given_up(scene.view, 1, std::nullopt).empty());
}

TEST_CASE("skip: a rank that closes without a step loses it to all", "[unit][agree]") {
  // Found by a job in rough weather: the rank's daemon was new, and had not seen the step that the
  // rank passed. The other rank's close waited for it until its deadline.
  Scene scene(2);
  scene.train(1, 5);
  scene.hold(0, 1, 5, 0);
  scene.rank(1).last_seen.reset();
  REQUIRE(agree::given_up(scene.view, 1, std::nullopt).empty());
  scene.rank(1).is_closing = true;
  REQUIRE(agree::given_up(scene.view, 1, std::nullopt).size() == 1);
  scene.hold(1, 1, 5, 1);
  REQUIRE(agree::given_up(scene.view, 1, std::nullopt).empty());
}

TEST_CASE("skip: steps seen in another timeline say nothing of this one", "[unit][agree]") {
  Scene scene(2);
  scene.train(2, 5);
  scene.hold(0, 2, 5, 0);
  scene.rank(1).timeline = 1;  // It has not begun with the others yet.
  scene.rank(1).last_seen = Step{9};
  REQUIRE(agree::given_up(scene.view, 2, std::nullopt).empty());
  scene.rank(1).timeline = 2;
  REQUIRE(agree::given_up(scene.view, 2, std::nullopt).size() == 1);
}

TEST_CASE("skip: a committed step is never given up", "[unit][agree]") {
  Scene scene(2);
  scene.train(1, 6);
  scene.hold(0, 1, 5, 0);
  REQUIRE(agree::given_up(scene.view, 1, format::StepId{1, Step{5}}).empty());
}

TEST_CASE("skip: the next common step lies beyond the newest that a rank has seen",
          "[unit][agree]") {
  Scene scene(2);
  scene.train(1, 10);
  scene.rank(1).last_seen = Step{12};
  REQUIRE(agree::next_common_capture(scene.view, 1, 1) == Step{14});
  scene.view.shape.save_mem_interval.steps = 10;
  REQUIRE(agree::next_common_capture(scene.view, 1, 1) == Step{30});
  // Steps of a timeline that ended say nothing.
  scene.rank(1).timeline = 2;
  REQUIRE(agree::next_common_capture(scene.view, 1, 1) == Step{30});
  scene.rank(1).last_seen = Step{500};
  REQUIRE(agree::next_common_capture(scene.view, 1, 1) == Step{30});
}

TEST_CASE("skip: a step of which a rank has only a replica left is given up", "[unit][agree]") {
  // Found by the simulator: nobody sends such a shard on, so it held Slots for ever.
  Scene scene(2);
  scene.train(1, 5);
  scene.hold(0, 1, 5, 0);
  scene.hold(1, 1, 5, 0);
  scene.hold(0, 1, 5, 1);
  const auto dropped = agree::given_up(scene.view, 1, std::nullopt);
  REQUIRE(dropped == std::vector<format::StepId>{{1, Step{5}}});
}
