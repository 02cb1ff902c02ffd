// Goal:   the index over reports, kept up to date one report at a time, says what a look at all of
//         them says; and what is restored without a node is what a vote without it says.
// Method: random reports that come, change and go, against plain loops over all of them.
#include "agree/report_index.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "agree/commit_rule.hpp"
#include "agree/step_vote.hpp"
#include "base/random.hpp"
#include "unit/agree/scene.hpp"

namespace ckpt::agree {
namespace {

constexpr std::uint32_t nodes_count = 5;

format::Holding random_holding(Random& random, std::uint32_t node) {
  format::Holding holding;
  holding.id = {{1 + random.below(2), Step{1 + random.below(3)}},
                static_cast<std::uint32_t>(random.below(nodes_count + 1))};
  holding.digest = test::digest(random.below(2));
  holding.world_size = random.one_in(8) ? nodes_count - 1 : nodes_count;
  holding.is_own = holding.id.rank == node;
  return holding;
}

// The first own copy decides, else the first of all; whoever agrees with it counts.
std::optional<Copies> by_hand(const ClusterView& view, format::StepId at, std::uint32_t world_size,
                              std::uint32_t rank) {
  std::optional<Copies> copies;
  for (const bool own_only : {true, false}) {
    for (const Node& node : view.shape.nodes) {
      for (const format::NodeReport& report : view.reports) {
        if (report.node != node.name) continue;
        for (const format::Holding& holding : report.holdings) {
          const bool is_it =
              holding.id.at == at && holding.id.rank == rank && holding.world_size == world_size;
          if (!is_it || (own_only && !holding.is_own)) continue;
          if (!copies) copies = Copies{holding.digest, {}, holding.is_own, 0, {}};
          auto& names = copies->nodes;
          const bool is_new = std::find(names.begin(), names.end(), report.node) == names.end();
          if (copies->digest == holding.digest && is_new) names.push_back(report.node);
        }
      }
    }
  }
  if (copies) copies->domains = domain_count(view.shape, copies->nodes);
  return copies;
}

void compare(const ClusterView& view, const ReportIndex& index, format::StepId at,
             std::uint32_t world_size) {
  const StepCopies copies = index.copies_of(at, world_size);
  REQUIRE(copies.size() == world_size);
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    const auto expected = by_hand(view, at, world_size, rank);
    CAPTURE(at.timeline, number(at.step), world_size, rank);
    REQUIRE(copies[rank].has_value() == expected.has_value());
    if (!expected) continue;
    CHECK(copies[rank]->digest == expected->digest);
    CHECK(copies[rank]->nodes == expected->nodes);
    CHECK(copies[rank]->has_own == expected->has_own);
    CHECK(copies[rank]->domains == expected->domains);
  }
}

void compare(const ClusterView& view, const ReportIndex& index) {
  for (std::uint64_t timeline : {1, 2}) {
    for (std::uint64_t step : {1, 2, 3}) {
      compare(view, index, {timeline, Step{step}}, nodes_count);
      compare(view, index, {timeline, Step{step}}, nodes_count - 1);
    }
  }
}

}  // namespace

TEST_CASE("report index: kept up to date, it says what a look at all reports says",
          "[unit][agree]") {
  Random random(7);
  for (int round = 0; round < 30; ++round) {
    test::Scene scene(nodes_count);
    if (random.one_in(2)) {
      scene.view.shape.nodes[0].failure_domain = "rack";
      scene.view.shape.nodes[3].failure_domain = "rack";
    }
    ReportIndex index(scene.view.shape);
    for (int change = 0; change < 20; ++change) {
      const auto place = static_cast<std::uint32_t>(random.below(nodes_count));
      format::NodeReport& report = scene.view.reports[place];
      index.remove(report);
      report.holdings.clear();
      for (std::uint64_t count = random.below(8); count > 0; --count)
        report.holdings.push_back(random_holding(random, place));
      index.add(report);
      compare(scene.view, index);
    }
    std::set<format::StepId> ours, of_others;
    for (const format::NodeReport& report : scene.view.reports) {
      for (const format::Holding& holding : report.holdings) {
        if (holding.id.rank >= holding.world_size) continue;
        (holding.world_size == nodes_count ? ours : of_others).insert(holding.id.at);
      }
    }
    const auto held = index.steps();
    CHECK(std::set<format::StepId>(held.begin(), held.end()) == ours);
    std::set<format::StepId> others;
    for (const ReportIndex::OfOthers& step : index.steps_of_others()) {
      CHECK(step.world_size == nodes_count - 1);
      others.insert(step.at);
    }
    CHECK(others == of_others);
  }
}

TEST_CASE("report index: a view in use does not change", "[unit][agree]") {
  test::Scene scene(2);
  scene.hold_everywhere(1, 5);
  ReportIndex index(scene.view.shape);
  for (const format::NodeReport& report : scene.view.reports) index.add(report);
  const StepCopies before = index.copies_of({1, Step{5}}, 2);
  index.remove(scene.view.reports[1]);
  CHECK(before[0]->nodes.size() == 2);
  CHECK(index.copies_of({1, Step{5}}, 2)[0]->nodes.size() == 1);
}

TEST_CASE("step vote: the nodes that hold each shard are named, its own first", "[unit][agree]") {
  test::Scene scene(3);
  scene.hold_everywhere(1, 5);
  scene.view.reports[2].holdings.clear();
  scene.view.published->push_back(
      {{1, Step{5}}, 3, {test::digest(7), test::digest(8), test::digest(9)}});
  const Vote outcome = vote(scene.view, {});
  REQUIRE(outcome.chosen);
  using Names = std::vector<std::string>;
  CHECK(outcome.holders == std::vector<Names>{{"A", "B"}, {"B"}, {"A"}});
  scene.lose(0);
  CHECK(vote(scene.view, {}).holders == std::vector<Names>{{"B"}, {"B"}, {}});  // From storage.
}

TEST_CASE("step vote: without each node, as a vote without its report says", "[unit][agree]") {
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    test::Scene scene(3);
    for (std::uint64_t step : {1, 2, 3}) {
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        for (std::uint32_t node = 0; node < 3; ++node) {
          if (random.one_in(node == rank ? 5 : 2)) continue;
          scene.hold(node, 1, step, rank);
        }
      }
      if (random.one_in(4))
        scene.view.published->push_back(
            {{1, Step{step}}, 3, {test::digest(7), test::digest(8), test::digest(9)}});
    }
    VoteRules rules;
    if (random.one_in(3)) rules.restore_counts = {{{1, Step{3}}, 3}};
    const auto survivals = votes_without_each(scene.view, rules);
    REQUIRE(survivals.size() == 3);
    for (std::size_t node = 0; node < 3; ++node) {
      test::Scene rest = scene;
      rest.lose(node);
      const Vote expected = vote(rest.view, rules);
      CAPTURE(round, node);
      CHECK(survivals[node].node == scene.view.reports[node].node);
      CHECK(survivals[node].chosen == expected.chosen);
      CHECK(survivals[node].from_storage == expected.from_storage);
    }
  }
}

}  // namespace ckpt::agree
