// Goal:   ranks that chose memory alone, or storage alone, get the newest step of that place, or an
//         error that says what the other place has; never another beginning beside stored steps.
// Method: holdings and published steps set by hand, as in the tests of the vote; then Starts of
//         ranks that chose alike, and of ranks that did not.
#include "agree/source_vote.hpp"

#include <catch2/catch.hpp>

#include "agree/start_rule.hpp"
#include "unit/agree/scene.hpp"

using namespace ckpt;
using ckpt::test::digest;
using ckpt::test::Scene;
using format::StepId;

namespace {

void publish(Scene& scene, std::uint64_t step) {
  scene.view.published->push_back({{1, Step{step}}, 2, {digest(7), digest(8)}});
}

// Step 4 is in memory and 3 on storage.
Scene newer_in_memory() {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  publish(scene, 3);
  return scene;
}

// Step 4 is on storage and 3 in memory; memory has half of step 4.
Scene newer_on_storage() {
  Scene scene(2);
  scene.hold_everywhere(1, 3);
  scene.hold(0, 1, 4, 0);
  publish(scene, 4);
  return scene;
}

agree::Vote vote_of(SourceChoice source, const Scene& scene,
                    std::optional<Step> wanted = std::nullopt) {
  agree::VoteRules rules;
  rules.wanted = wanted;
  return agree::vote_from(source, scene.view, rules);
}

void all_choose(Scene& scene, SourceChoice source, std::optional<Step> wanted = std::nullopt) {
  scene.all_ask(wanted);
  for (std::size_t rank = 0; rank < scene.view.reports.size(); ++rank)
    scene.rank(rank).source = source;
}

agree::StartDecision decide_for(const Scene& scene, const agree::StartState& state = {}) {
  Random random(1);
  return agree::decide_start(scene.view, state, false, random);
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("source vote: each place gives its own newest step, whatever the other has",
          "[unit][agree]") {
  const Scene scene = newer_in_memory();
  const agree::Vote stored = vote_of(SourceChoice::storage, scene);
  REQUIRE(stored.chosen == StepId{1, Step{3}});
  CHECK(stored.from_storage);
  CHECK(stored.holders == std::vector<std::vector<std::string>>(2));
  CHECK(stored.digests == std::vector<Digest>{digest(7), digest(8)});
  CHECK(says(stored.reason, "storage alone was asked for: with memory it would be step 4"));

  const Scene other = newer_on_storage();
  REQUIRE(vote_of(SourceChoice::any, other).chosen == StepId{1, Step{4}});
  const agree::Vote held = vote_of(SourceChoice::memory, other);
  REQUIRE(held.chosen == StepId{1, Step{3}});
  CHECK_FALSE(held.from_storage);
  CHECK(says(held.reason, "memory alone was asked for: with storage it would be step 4"));
}

TEST_CASE("source vote: a step that both have is taken from the one that was chosen",
          "[unit][agree]") {
  Scene scene = newer_in_memory();
  publish(scene, 4);
  const agree::Vote stored = vote_of(SourceChoice::storage, scene);
  REQUIRE(stored.chosen == StepId{1, Step{4}});
  CHECK(stored.from_storage);
  CHECK_FALSE(says(stored.reason, "would be"));
  const agree::Vote held = vote_of(SourceChoice::memory, scene);
  REQUIRE(held.chosen == StepId{1, Step{4}});
  CHECK_FALSE(held.from_storage);
}

TEST_CASE("source vote: a copy in memory that differs from what was published is not taken",
          "[unit][agree]") {
  Scene scene(2);
  for (const std::uint32_t rank : {0, 1}) scene.hold(rank, 1, 4, rank, 99);
  publish(scene, 4);
  CHECK_FALSE(vote_of(SourceChoice::memory, scene).chosen);
}

TEST_CASE("source vote: memory that lacks a shard says so, and what storage has", "[unit][agree]") {
  Scene scene = newer_on_storage();
  const agree::Vote by_number = vote_of(SourceChoice::memory, scene, Step{4});
  CHECK(by_number.error == Errc::unavailable);
  CHECK(by_number.reason ==
        "step 4 cannot be restored from memory alone, as was asked (step 4: rejected: some of its "
        "shards are on storage only); with storage, step 4 can be restored");
  scene.lose(0);
  scene.lose(0);
  const agree::Vote newest = vote_of(SourceChoice::memory, scene);
  CHECK(newest.error == Errc::unavailable);
  CHECK(says(newest.reason, "no step can be restored from memory alone, as was asked"));
  CHECK(says(newest.reason, "with storage, step 4 can be restored"));
}

TEST_CASE("source vote: storage without steps says what memory has", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  const agree::Vote outcome = vote_of(SourceChoice::storage, scene);
  CHECK(outcome.error == Errc::unavailable);
  CHECK(outcome.reason ==
        "no step can be restored from storage alone, as was asked (there is none); with memory, "
        "step 4 can be restored");
}

TEST_CASE("source vote: damage on storage keeps its name", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  scene.view.damaged_published = 1;
  const agree::Vote outcome = vote_of(SourceChoice::storage, scene);
  CHECK(outcome.error == Errc::corruption);
  CHECK(says(outcome.reason, "1 checkpoint on storage is damaged"));
  CHECK(says(outcome.reason, "with memory, step 4 can be restored"));
}

TEST_CASE("source vote: where nothing is anywhere, training begins as ever", "[unit][agree]") {
  Scene scene(2);
  for (const SourceChoice source : {SourceChoice::memory, SourceChoice::storage}) {
    const agree::Vote outcome = vote_of(source, scene);
    CHECK(outcome.error == Errc::not_found);
    CHECK(outcome.reason == format::nothing_seen);
    all_choose(scene, source);
    const auto begun = decide_for(scene).next;
    REQUIRE(begun);
    CHECK(begun->outcome.is_go());
    CHECK_FALSE(begun->base);
  }
}

TEST_CASE("source vote: abandoned steps stay so, from either place", "[unit][agree]") {
  const Scene scene = newer_in_memory();
  agree::VoteRules rules;
  rules.history = {{1, {}}, {2, StepId{1, Step{2}}}};
  CHECK_FALSE(agree::vote_from(SourceChoice::storage, scene.view, rules).chosen);
  CHECK_FALSE(agree::vote_from(SourceChoice::memory, scene.view, rules).chosen);
}

TEST_CASE("source vote: the Start says where all ranks take their shards from", "[unit][agree]") {
  Scene scene = newer_in_memory();
  all_choose(scene, SourceChoice::storage);
  const auto start = decide_for(scene).next;
  REQUIRE(start);
  CHECK(start->source == SourceChoice::storage);
  CHECK(start->base == StepId{1, Step{3}});
  // Memory has a newer one, which this abandons: its timeline is above that one's.
  CHECK(start->timeline > 1);
  CHECK(start->newest_seen == Step{4});
}

TEST_CASE("source vote: a Start that misses its place fails, and does not begin anew",
          "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  all_choose(scene, SourceChoice::storage);
  const auto start = decide_for(scene).next;
  REQUIRE(start);
  CHECK(start->outcome.error() == Errc::unavailable);
}

TEST_CASE("source vote: ranks that chose differently begin from none", "[unit][agree]") {
  Scene scene = newer_in_memory();
  all_choose(scene, SourceChoice::storage);
  scene.rank(0).source = SourceChoice::any;
  const auto refused = decide_for(scene).next;
  REQUIRE(refused);
  CHECK(refused->outcome.error() == Errc::invalid_argument);
  CHECK(refused->reason ==
        "rank 0 asked for a step from any source, and rank 1 from storage: all ranks choose the "
        "same source");
}

TEST_CASE("source vote: storage that does not answer is waited for, unless memory was chosen",
          "[unit][agree]") {
  Scene scene = newer_in_memory();
  scene.view.published.reset();
  scene.view.reports.front().durable.emplace_back(1, Step{5});
  agree::StartState late;
  late.is_storage_late = true;
  all_choose(scene, SourceChoice::storage);
  CHECK(decide_for(scene, late).waiting == "storage, which was asked for, does not answer");
  all_choose(scene, SourceChoice::any);
  CHECK_FALSE(decide_for(scene, late).next);  // Its step 5 would be abandoned.
  all_choose(scene, SourceChoice::memory);
  const auto start = decide_for(scene, late).next;
  REQUIRE(start);
  CHECK(start->base == StepId{1, Step{4}});
  for (format::NodeReport& report : scene.view.reports) report.holdings.clear();
  CHECK(says(decide_for(scene, late).waiting, "memory has no whole step"));
}
