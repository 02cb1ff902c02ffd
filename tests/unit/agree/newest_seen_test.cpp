// Goal:   a restore counts as lost the steps that training is known to have come to since, never
// more,
//         and says nothing where nobody knows.
// Method: reports of two nodes set by hand, with what a daemon saw, holds or stored; the step is
//         compared for histories in which it was or was not abandoned.
#include "agree/newest_seen.hpp"

#include <catch2/catch.hpp>

#include "agree/start_rule.hpp"
#include "unit/agree/scene.hpp"

using namespace ckpt;
using ckpt::test::Scene;
using format::StepId;

namespace {

struct SeenScene : Scene {
  SeenScene() : Scene(2) { hold_everywhere(2, 90); }
  void see(std::size_t node, std::uint64_t timeline, std::uint64_t step) {
    view.reports[node].newest_seen = StepId{timeline, Step{step}};
  }
  std::optional<Step> newest(const agree::History& history = {}) const {
    return agree::newest_seen(view, history, {2, Step{90}});
  }
};

}  // namespace

TEST_CASE_METHOD(SeenScene, "newest seen: the newest of what any daemon saw", "[unit][agree]") {
  see(0, 2, 92);
  see(1, 2, 93);
  CHECK(newest() == Step{93});
  lose(1);
  CHECK(newest() == Step{92});
}

TEST_CASE_METHOD(SeenScene, "newest seen: nothing was lost only where a daemon watched",
                 "[unit][agree]") {
  CHECK_FALSE(newest().has_value());
  view.reports[0].committed = StepId{2, Step{90}};
  view.published->push_back({{2, Step{90}}, 2, {}});
  CHECK_FALSE(newest().has_value());
  see(1, 2, 90);
  CHECK(newest() == Step{90});
}

TEST_CASE_METHOD(SeenScene, "newest seen: any trace of a later step counts", "[unit][agree]") {
  SECTION("one shard in memory") {
    hold(1, 2, 95, 0);
  }
  SECTION("one of another number of ranks") {
    hold(1, 2, 95, 2);
    view.reports[1].holdings.back().world_size = 3;
  }
  SECTION("a stored step that cannot be had any more") {
    view.reports[0].durable = {{2, Step{95}}};
  }
  SECTION("a step of another number of ranks on storage") {
    view.published->push_back({{2, Step{95}}, 3, {}});
  }
  SECTION("a commit") {
    view.reports[0].committed = StepId{2, Step{95}};
  }
  CHECK(newest() == Step{95});
  see(0, 2, 94);
  CHECK(newest() == Step{95});
}

TEST_CASE_METHOD(SeenScene, "newest seen: what was lost before is not counted again",
                 "[unit][agree]") {
  const agree::History history{{3, StepId{2, Step{90}}}};
  see(0, 2, 95);
  hold(1, 2, 95, 0);
  CHECK_FALSE(newest(history).has_value());
  see(1, 3, 91);
  CHECK(newest(history) == Step{91});
}

TEST_CASE_METHOD(SeenScene, "newest seen: steps of a timeline that began anew say nothing",
                 "[unit][agree]") {
  const agree::History history{{3, std::nullopt}};
  see(0, 3, 95);
  CHECK_FALSE(newest(history).has_value());
  see(1, 2, 92);
  CHECK(newest(history) == Step{92});
}

TEST_CASE_METHOD(SeenScene,
                 "newest seen: a damaged step on storage counts, if it was not abandoned",
                 "[unit][agree]") {
  view.newest_damaged = Step{95};
  view.damaged_steps = {{2, Step{95}}};
  CHECK(newest({{2, std::nullopt}}) == Step{95});
  CHECK(newest({{1, std::nullopt}, {2, StepId{1, Step{80}}}}) == Step{95});
  CHECK_FALSE(newest({{2, std::nullopt}, {3, StepId{2, Step{90}}}}).has_value());
  view.damaged_steps = {{3, Step{95}}};
  CHECK(newest({{2, std::nullopt}, {3, StepId{2, Step{90}}}}) == Step{95});
  CHECK_FALSE(newest({{2, std::nullopt}, {3, std::nullopt}}).has_value());
  view.newest_damaged = Step{80};
  view.damaged_steps = {{2, Step{80}}};
  CHECK_FALSE(newest({{2, std::nullopt}}).has_value());
}

TEST_CASE_METHOD(SeenScene,
                 "newest seen: a step of which only the name is left counts, if it is "
                 "lost in every timeline",
                 "[unit][agree]") {
  if (GENERATE(true, false)) {
    view.newest_damaged = Step{95};
  } else {
    view.unreadable_steps = {{Step{95}, "of another user"}};
  }
  CHECK(newest() == Step{95});
  CHECK(newest({{2, std::nullopt}}) == Step{95});
  CHECK(newest({{2, std::nullopt}, {3, StepId{2, Step{97}}}}) == Step{95});
  CHECK_FALSE(newest({{2, std::nullopt}, {3, StepId{2, Step{93}}}}).has_value());
  CHECK_FALSE(newest({{1, std::nullopt}, {2, StepId{1, Step{80}}}}).has_value());
  CHECK_FALSE(newest({{2, std::nullopt}, {3, std::nullopt}}).has_value());
  see(0, 2, 97);
  CHECK(newest() == Step{97});
}

TEST_CASE_METHOD(SeenScene, "newest seen: an older step than the restored one says nothing",
                 "[unit][agree]") {
  see(0, 2, 70);
  CHECK_FALSE(newest().has_value());
}

TEST_CASE_METHOD(SeenScene, "newest seen: without the history nobody counts", "[unit][agree]") {
  see(0, 2, 95);
  view.history_lost = "timelines.json is damaged";
  CHECK_FALSE(newest().has_value());
}

TEST_CASE_METHOD(SeenScene, "newest seen: a Start says it of its base, and of no other step",
                 "[unit][agree]") {
  see(0, 2, 93);
  all_ask();
  Random random(1);
  agree::StartState state;
  state.current = agree::decide_start(view, state, false, random).next;
  REQUIRE(state.current->base == StepId{2, Step{90}});
  CHECK(state.current->newest_seen == Step{93});

  // The copies turn out bad, and the next attempt takes an older step.
  view.reports[0].holdings.clear();
  view.reports[1].holdings.clear();
  hold_everywhere(2, 80);
  for (format::NodeReport& report : view.reports) {
    report.ranks.front().phase = format::StartPhase::failed;
    report.ranks.front().start_id = state.current->start_id;
    report.ranks.front().attempt = state.current->attempt;
  }
  see(0, 1, 93);
  const auto again = agree::decide_start(view, state, false, random).next;
  REQUIRE(again->base == StepId{2, Step{80}});
  CHECK_FALSE(again->newest_seen.has_value());
}
