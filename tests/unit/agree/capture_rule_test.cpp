// Goal:   after a skip the ranks meet again, at a step that all of them still have before them, and
//         further away when that was too near; ranks of another timeline do not count.
// Method: two ranks whose newest steps are set by hand, and a rule that is asked after each skip.
#include "agree/capture_rule.hpp"

#include <catch2/catch.hpp>

#include "unit/agree/scene.hpp"

using namespace ckpt;
using ckpt::test::Scene;

namespace {

const Time now = Time{} + std::chrono::hours(1);

std::uint64_t order_after_skip(agree::CaptureRule& rule, const Scene& scene, Step outstanding) {
  const auto ordered = rule.after_skip(scene.view, 2, outstanding, now);
  return ordered ? number(*ordered) : 0;
}

}  // namespace

TEST_CASE("capture rule: an order stands while a rank of this timeline is before it",
          "[unit][agree]") {
  Scene scene(2);
  scene.train(2, 5);
  CHECK(agree::is_before_some(scene.view, 2, Step{6}));
  CHECK_FALSE(agree::is_before_some(scene.view, 2, Step{5}));
  CHECK_FALSE(agree::is_before_some(scene.view, 1, Step{6}));
  scene.rank(0).is_closing = true;
  CHECK(agree::is_before_some(scene.view, 2, Step{6}));
  scene.rank(1).is_closing = true;
  CHECK_FALSE(agree::is_before_some(scene.view, 2, Step{6}));
}

TEST_CASE("capture rule: the newest step is that of a rank of this timeline", "[unit][agree]") {
  Scene scene(2);
  scene.train(2, 5);
  scene.rank(1).last_seen = Step{7};
  CHECK(agree::newest_seen(scene.view, 2) == 7);
  scene.rank(1).timeline = 1;
  CHECK(agree::newest_seen(scene.view, 2) == 5);
  CHECK(agree::newest_seen(scene.view, 3) == 0);
}

TEST_CASE("capture rule: while steps are skipped in a row, each order is further away",
          "[unit][agree]") {
  agree::CaptureRule rule(std::chrono::milliseconds(300));
  Scene scene(2);
  scene.view.shape.save_mem_interval.steps = 10;
  rule.begin(0, {}, now);
  std::uint64_t reached = 10;
  for (const std::uint64_t intervals : {1, 2, 4, 8, 16, 32, 64, 64}) {
    scene.train(2, reached);
    const std::uint64_t ordered = order_after_skip(rule, scene, Step{reached});
    CHECK(ordered == reached + 10 + 10 * intervals);
    CHECK(order_after_skip(rule, scene, Step{ordered}) == 0);  // It is still before them.
    reached = ordered;
  }
  scene.train(2, reached);
  SECTION("until a step is committed") {
    rule.step_committed();
    CHECK(order_after_skip(rule, scene, Step{reached}) == reached + 20);
  }
  SECTION("until another timeline begins") {
    rule.begin(0, {}, now);
    CHECK(order_after_skip(rule, scene, Step{reached}) == reached + 20);
  }
  SECTION("until another node coordinates") {
    rule.forget();
    CHECK(order_after_skip(rule, scene, Step{reached}) == reached + 20);
  }
}

TEST_CASE("capture rule: a training that begins anew at a late step is not taken for a fast one",
          "[unit][agree]") {
  agree::CaptureRule rule(std::chrono::milliseconds(300));
  Scene scene(2);
  scene.view.shape.save_mem_interval.steps = 0;
  scene.view.shape.save_mem_interval.time = std::chrono::seconds(30);
  rule.begin(0, std::chrono::seconds(30), now);
  scene.train(2, 1'000'000);
  CHECK_FALSE(rule.by_time(scene.view, 2, Step{}, now + std::chrono::seconds(1)));
  scene.train(2, 1'000'029);  // A step takes a second.
  const auto ordered = rule.by_time(scene.view, 2, Step{}, now + std::chrono::seconds(30));
  CHECK(ordered == Step{1'000'031});
}
