// Goal:   a coordinator that orders captures by time keeps the interval as well as it can, also
//         after it was replaced or restarted; one that has just taken over commits nothing on what
//         it alone can see.
// Method: whole views set by hand, one look of the coordinator at a time.
#include "agree/coordinator.hpp"

#include <catch2/catch.hpp>

#include "agree/commit_rule.hpp"
#include "unit/agree/scene.hpp"

using namespace ckpt;
using ckpt::test::Scene;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// Two ranks that train at a steady pace and capture each step that was ordered, as their clients
// do.
class PacedScene : public Scene {
 public:
  explicit PacedScene(milliseconds interval) : Scene(2), coordinator({"A", 1}) {
    view.shape.save_mem_interval = Interval{0, interval};
  }

  // Both begin without restoring; they capture the first step that they come to.
  void begin() {
    for (std::size_t index = 0; index < 2; ++index) rank(index).phase = format::StartPhase::fresh;
    look();
    REQUIRE(coordinator.decree().start->outcome.is_go());
    train(coordinator.decree().start->timeline, 0);
    for (std::size_t index = 0; index < 2; ++index)
      rank(index).start_id = coordinator.decree().start->start_id;
    look();
  }
  // As after a restart of the daemon: the ranks train, and nobody knows of a Start.
  void go_on(std::uint64_t first) {
    step = first;
    train(1, step);
    look();
  }
  void pass(Duration time, Duration step_time = milliseconds(10)) {
    for (const Time end = now + time; now < end;) {
      now += step_time;
      ++step;
      const std::uint64_t ordered = number(coordinator.decree().next_capture);
      if (ordered > captured && step >= ordered) {
        captured = step;
        ++captures;
      }
      for (std::size_t index = 0; index < 2; ++index) rank(index).last_seen = Step{step};
      look();
    }
  }
  void look() { coordinator.decide(view, now); }

  agree::Coordinator coordinator;
  Time now{seconds(100)};
  std::uint64_t step = 0, captured = 0, captures = 0;
};

}  // namespace

TEST_CASE("captures: an interval shorter than the notice is kept as well as it can be",
          "[unit][agree]") {
  PacedScene scene(milliseconds(200));
  scene.begin();
  scene.pass(seconds(10));
  // An order takes 300 ms to reach all ranks: at least every second interval brings a capture.
  CHECK(scene.captures >= 24);
  CHECK(scene.captures <= 50);
}

TEST_CASE("captures: no order replaces one that some rank has still before it", "[unit][agree]") {
  PacedScene scene(milliseconds(200));
  scene.begin();
  scene.pass(seconds(1));
  const std::uint64_t outstanding = number(scene.coordinator.decree().next_capture);
  REQUIRE(outstanding > scene.step);
  // One rank stands still, the other goes past the order.
  scene.rank(0).last_seen = Step{outstanding + 5};
  for (int times = 0; times < 10; ++times) {
    scene.now += milliseconds(200);
    scene.look();
    CHECK(number(scene.coordinator.decree().next_capture) == outstanding);
  }
  scene.rank(1).last_seen = Step{outstanding};
  scene.look();
  CHECK(number(scene.coordinator.decree().next_capture) > outstanding);
}

TEST_CASE("captures: a daemon that was restarted orders captures by time again", "[unit][agree]") {
  PacedScene scene(seconds(2));
  scene.go_on(5000);
  CHECK(scene.coordinator.decree().next_capture == Step{});
  scene.pass(seconds(1));
  CHECK(scene.captures == 1);  // At once: the memory of the daemon before it is gone.
  scene.pass(seconds(10));
  CHECK(scene.captures >= 5);
  CHECK(scene.captures <= 7);
}

TEST_CASE("captures: a run that goes on from a late step is not taken for a fast one",
          "[unit][agree]") {
  PacedScene scene(seconds(1));
  scene.hold_everywhere(1, 50'000);
  scene.all_ask();
  scene.look();
  const format::Start start = *scene.coordinator.decree().start;
  for (std::size_t index = 0; index < 2; ++index) {
    scene.rank(index).phase = format::StartPhase::ready;
    scene.rank(index).start_id = start.start_id;
    scene.rank(index).attempt = start.attempt;
  }
  scene.look();
  REQUIRE(scene.coordinator.decree().start->outcome.is_go());
  scene.train(scene.coordinator.decree().start->timeline, 50'000);
  scene.step = 50'000;
  scene.pass(seconds(2));
  // 100 steps a second, 300 ms of notice.
  CHECK(number(scene.coordinator.decree().next_capture) < 50'000 + 200 + 40);
  CHECK(scene.captures >= 1);
}

TEST_CASE("takeover: nothing is committed before every live node has reported", "[unit][agree]") {
  // Three nodes, three copies. The successor sees its own report first: were the others taken for
  // lost, one copy would be enough, and the older steps that the others hold would be freed.
  Scene scene(3);
  scene.view.shape.replicas = 3;
  scene.train(1, 5);
  for (std::size_t node = 0; node < 3; ++node)
    for (std::uint32_t rank = 0; rank < 3; ++rank) scene.hold(node, 1, 4, rank);
  for (std::uint32_t rank = 0; rank < 3; ++rank) scene.hold(0, 1, 5, rank);
  agree::ClusterView whole = scene.view;
  scene.view.reports.resize(1);
  scene.view.unreported = {"B", "C"};
  scene.view.all_live = false;
  agree::Coordinator coordinator({"A", 1});
  coordinator.decide(scene.view, Time{});
  CHECK_FALSE(coordinator.decree().committed.has_value());
  CHECK(coordinator.decree().dropped.empty());
  CHECK(agree::required_copies(scene.view) == 3);

  coordinator.decide(whole, Time{});
  CHECK(coordinator.decree().committed == format::StepId{1, Step{4}});
}

TEST_CASE("takeover: no step is given up while a node may still come", "[unit][agree]") {
  // A was started again, in a job that has committed step 4. B knows that.
  Scene scene(2);
  scene.train(1, 5);
  scene.hold(0, 1, 4, 1);  // A copy came back before B was heard.
  agree::ClusterView whole = scene.view;
  whole.reports[1].committed = format::StepId{1, Step{4}};
  scene.view.reports.pop_back();
  scene.view.all_live = false;
  agree::Coordinator coordinator({"A", 1});
  coordinator.decide(scene.view, Time{});
  CHECK(coordinator.decree().dropped.empty());
  SECTION("which does") {
    coordinator.decide(whole, Time{});
    CHECK(coordinator.decree().committed == format::StepId{1, Step{4}});
    CHECK(coordinator.decree().dropped.empty());
  }
  SECTION("which is lost") {
    scene.view.expected.pop_back();
    coordinator.decide(scene.view, Time{});
    CHECK(coordinator.decree().dropped == std::vector{format::StepId{1, Step{4}}});
  }
}

TEST_CASE("coordinator: ranks without Slots are named with their nodes", "[unit][agree]") {
  Scene scene(3);
  scene.train(1, 5);
  scene.hold_everywhere(1, 5);
  scene.rank(1).failure = "has no Slots to save in: too little";
  scene.view.reports[2].ranks.push_back(scene.rank(2));
  scene.view.reports[2].ranks[1].rank = 7;
  for (format::RankReport& rank : scene.view.reports[2].ranks) rank.failure = "has none";
  scene.rank(0).phase = GENERATE(format::StartPhase::failed, format::StartPhase::refused);
  scene.rank(0).failure = "speaks of a restore";
  agree::Coordinator coordinator({"A", 1});
  coordinator.decide(scene.view, Time{});
  CHECK(coordinator.decree().degraded ==
        "node B: rank 1 has no Slots to save in: too little; node C: rank 2 has none; "
        "rank 7 has none");
}

TEST_CASE("takeover: a node that is heard and does not report is named", "[unit][agree]") {
  Scene scene(2);
  scene.train(1, 5);
  scene.hold_everywhere(1, 5);
  scene.view.reports.pop_back();
  scene.view.unreported = {"B"};
  agree::Coordinator coordinator({"A", 1});
  coordinator.decide(scene.view, Time{});
  CHECK(coordinator.decree().degraded.empty());  // It may be about to.
  coordinator.decide(scene.view, Time{} + seconds(4));
  CHECK(coordinator.decree().degraded ==
        "no step is committed: node B is heard, but does not report to node A");
}

TEST_CASE("takeover: enough copies on some nodes do not commit before all have reported",
          "[unit][agree]") {
  Scene scene(3);
  scene.train(1, 5);
  scene.hold_everywhere(1, 5);
  agree::ClusterView whole = scene.view;
  scene.hold(0, 1, 5, 1);  // A and B hold all three shards twice.
  scene.hold(1, 1, 5, 2);
  scene.view.reports.pop_back();
  scene.view.unreported = {"C"};
  agree::Coordinator coordinator({"A", 1});
  coordinator.decide(scene.view, Time{});
  CHECK_FALSE(coordinator.decree().committed.has_value());
  coordinator.decide(whole, Time{});
  CHECK(coordinator.decree().committed == format::StepId{1, Step{5}});
}
