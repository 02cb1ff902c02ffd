// Goal:   the vote takes the newest step that all ranks can have, of the history that counts, and
//         says why each other one was not taken.
// Method: holdings and published steps set by hand; then one thing is taken away at a time.
#include "agree/step_vote.hpp"

#include <catch2/catch.hpp>

#include "unit/agree/scene.hpp"

using namespace ckpt;
using ckpt::test::digest;
using ckpt::test::Scene;

namespace {

agree::Vote vote(const Scene& scene, agree::VoteRules rules = {}) {
  return agree::vote(scene.view, rules);
}

}  // namespace

TEST_CASE("vote: the newest exact common step, not the newest of anybody", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  scene.hold(0, 1, 5, 0);
  const agree::Vote outcome = vote(scene);
  REQUIRE(outcome.chosen == format::StepId{1, Step{4}});
  REQUIRE(outcome.candidates.front().at == format::StepId{1, Step{5}});
  REQUIRE(outcome.candidates.front().verdict.find("no copy of rank 1") != std::string::npos);
}

TEST_CASE("vote: not the minimum of everyone's newest either", "[unit][agree]") {
  // A has 3 and 5, B has 3, 4 and 5: the minimum rule would be right here by luck; take 5 of A
  // away.
  Scene scene(2);
  scene.hold(0, 1, 3, 0);
  scene.hold(1, 1, 3, 1);
  scene.hold(1, 1, 4, 1);
  scene.hold(0, 1, 5, 0);
  REQUIRE(vote(scene).chosen == format::StepId{1, Step{3}});
}

TEST_CASE("vote: a lost node's shard comes from the peer that holds it", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  scene.lose(0);
  const agree::Vote outcome = vote(scene);
  REQUIRE(outcome.chosen == format::StepId{1, Step{4}});
  REQUIRE_FALSE(outcome.from_storage);
}

TEST_CASE("vote: storage counts when memory cannot, and only if it is newer or all there is",
          "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  scene.view.published->push_back({{1, Step{3}}, 2, {digest(1), digest(2)}});
  REQUIRE(vote(scene).chosen == format::StepId{1, Step{4}});
  scene.lose(0);
  scene.lose(0);
  const agree::Vote outcome = vote(scene);
  REQUIRE(outcome.chosen == format::StepId{1, Step{3}});
  REQUIRE(outcome.from_storage);
  REQUIRE(outcome.digests == std::vector<Digest>{digest(1), digest(2)});
}

TEST_CASE("vote: a newer timeline is preferred whatever its step", "[unit][agree]") {
  Scene scene(1);
  scene.hold_everywhere(1, 90);
  scene.hold_everywhere(2, 10);
  REQUIRE(vote(scene).chosen == format::StepId{2, Step{10}});
}

TEST_CASE("vote: steps abandoned by a restore are not taken", "[unit][agree]") {
  Scene scene(1);
  scene.hold_everywhere(1, 80);
  scene.hold_everywhere(1, 90);
  agree::VoteRules rules;
  rules.history = {{1, {}}, {2, format::StepId{1, Step{80}}}};
  REQUIRE(vote(scene, rules).chosen == format::StepId{1, Step{80}});
}

TEST_CASE("vote: a suspect step is stepped over, unless it is the only one", "[unit][agree]") {
  Scene scene(1);
  scene.hold_everywhere(1, 8);
  scene.hold_everywhere(1, 9);
  agree::VoteRules rules;
  rules.restore_counts = {{{1, Step{9}}, 3}};
  REQUIRE(vote(scene, rules).chosen == format::StepId{1, Step{8}});
  REQUIRE(vote(scene, rules).reason.find("step 9 rejected: restored 3 times") != std::string::npos);
  rules.restore_counts.push_back({{1, Step{8}}, 3});
  REQUIRE(vote(scene, rules).chosen == format::StepId{1, Step{9}});
  rules.restore_counts = {{{1, Step{9}}, 2}};
  REQUIRE(vote(scene, rules).chosen == format::StepId{1, Step{9}});
}

TEST_CASE("vote: nothing at all is not found, damage and another world are not", "[unit][agree]") {
  Scene scene(2);
  REQUIRE(vote(scene).error == Errc::not_found);
  scene.view.damaged_published = 1;
  REQUIRE(vote(scene).error == Errc::corruption);
  REQUIRE(vote(scene).reason.find("1 checkpoint on storage is damaged") != std::string::npos);
  scene.view.misplaced_published = 1;
  CHECK(vote(scene).reason.find("1 checkpoint on storage is a link or has another step's name") !=
        std::string::npos);
  CHECK(vote(scene).reason.find("damaged") == std::string::npos);
  scene.view.damaged_published = 3;
  CHECK(vote(scene).reason.find("2 checkpoints on storage are damaged, 1 checkpoint on storage is "
                                "a link") != std::string::npos);
  scene.view.misplaced_published = 0;
  REQUIRE(vote(scene).reason.find("3 checkpoints on storage are damaged") != std::string::npos);
  REQUIRE(vote(scene).reason.find("no other can be restored") != std::string::npos);
  scene.view.published->push_back({{1, Step{3}}, 4, {digest(1), digest(2), digest(3), digest(4)}});
  REQUIRE(vote(scene).error == Errc::corruption);
  REQUIRE(vote(scene).reason.find("step 3, was taken by 4 ranks") != std::string::npos);
  scene.view.damaged_published = 0;
  const agree::Vote outcome = vote(scene);
  REQUIRE(outcome.error == Errc::unsupported);
  REQUIRE(outcome.reason.find("4 ranks") != std::string::npos);
}

TEST_CASE("vote: a restore beside damage reports it", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  REQUIRE(vote(scene).reason == "the newest that all ranks can have");
  scene.view.damaged_published = 1;
  REQUIRE(vote(scene).chosen);
  REQUIRE(
      vote(scene).reason.find("1 checkpoint on storage is damaged (see ckpt verify), passed by") !=
      std::string::npos);
}

TEST_CASE("vote: the newest step is said to be that, also where a trainer names it",
          "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 3);
  scene.hold_everywhere(1, 4);
  agree::VoteRules rules;
  rules.wanted = Step{4};  // A door has looked at the newest, and brings it.
  CHECK(vote(scene, rules).reason == "the newest that all ranks can have");
  rules.wanted = Step{3};
  CHECK(vote(scene, rules).reason == "the step that was asked for");
  rules.history = {{1, {}}, {2, format::StepId{1, Step{3}}}};  // Step 4 is abandoned.
  CHECK(vote(scene, rules).reason == "the newest that all ranks can have");
  rules.history.clear();
  rules.restore_counts = {{{1, Step{4}}, 3}};  // And now it is suspect.
  CHECK(vote(scene, rules).reason == "the newest that all ranks can have");
  rules.wanted = Step{4};
  CHECK(vote(scene, rules).reason == "the step that was asked for");
}

TEST_CASE("vote: what a node without a rank found in an earlier restore may be repaired by now",
          "[unit][agree]") {
  Scene scene(2);
  scene.view.shape.world_size = 1;
  scene.view.published = {{{{1, Step{3}}, 1, {digest(1)}}, {{1, Step{4}}, 1, {digest(1)}}}};
  scene.view.reports[1].damaged = {{{{1, Step{4}}, 0}, Errc::corruption}};
  const auto chosen = [&] { return number(vote(scene).chosen->step); };
  scene.view.reports[1].ranks.clear();
  CHECK(chosen() == 4);
  CHECK(vote(scene).reason.find("damaged") == std::string::npos);
  // While nobody trains, it says what the last restore found.
  const auto rank = scene.view.reports[0].ranks;
  scene.view.reports[0].ranks.clear();
  CHECK(chosen() == 3);
  scene.view.reports[0].ranks = rank;
  scene.view.reports[0].damaged = scene.view.reports[1].damaged;
  CHECK(chosen() == 3);
}

TEST_CASE("vote: a file that any node found damaged is not voted for", "[unit][agree]") {
  Scene scene(2);
  scene.view.published->push_back({{1, Step{3}}, 2, {digest(1), digest(2)}});
  scene.view.published->push_back({{1, Step{4}}, 2, {digest(7), digest(8)}});
  REQUIRE(vote(scene).chosen == format::StepId{1, Step{4}});
  scene.view.reports[1].damaged = {{{{1, Step{4}}, 1}, Errc::corruption}};
  const agree::Vote older = vote(scene);
  CHECK(older.chosen == format::StepId{1, Step{3}});
  CHECK(older.candidates.front().verdict ==
        "rejected: no copy of it in memory, and the stored shard of rank 1 is damaged");
  CHECK(older.reason ==
        "the newest that all ranks can have; step 4 rejected: no copy of it in memory, and the "
        "stored shard of rank 1 is damaged; 1 checkpoint on storage is damaged (see ckpt verify), "
        "passed by; going on from step 3 abandons step 4, also if it is mended later: to take it, "
        "stop now, mend it and restore it by its path; " +
            std::string(format::repair_advice));

  // Another timeline may have a step of that number.
  agree::VoteRules later;
  later.history = {{1, {}}, {2, format::StepId{1, Step{3}}}};
  scene.view.published->push_back({{2, Step{4}}, 2, {digest(7), digest(8)}});
  scene.view.reports[1].damaged = {{{{2, Step{4}}, 1}, Errc::corruption}};
  CHECK(
      vote(scene, later).reason.find("going on from step 3 abandons step 4 of timeline 2, also") !=
      std::string::npos);
  scene.view.published->pop_back();
  scene.view.reports[1].damaged = {{{{1, Step{4}}, 1}, Errc::corruption}};

  // It was abandoned before: nothing is lost by it now.
  agree::VoteRules rules;
  rules.history = {{1, {}}, {2, format::StepId{1, Step{3}}}};
  scene.view.newest_damaged = Step{4};
  CHECK(vote(scene, rules).chosen == format::StepId{1, Step{3}});
  CHECK(vote(scene, rules).reason.find("abandons") == std::string::npos);
  scene.view.newest_damaged.reset();

  // The other rank's file is good, and this rank's bytes are in memory.
  scene.hold(1, 1, 4, 1);
  CHECK(vote(scene).chosen == format::StepId{1, Step{4}});
  scene.view.reports[1].holdings.clear();

  scene.view.reports[0].damaged = {{{{1, Step{3}}, 0}, Errc::io}};
  const agree::Vote none = vote(scene);
  CHECK(none.error == Errc::io);
  CHECK(none.candidates.back().verdict.find("rank 0 could not be read") != std::string::npos);
  CHECK(none.reason.starts_with("step 3 on storage could not be read, and may be good: "));
}

TEST_CASE("vote: nothing older is chosen for a newer step that could not be read",
          "[unit][agree]") {
  Scene scene(2);
  scene.view.published->push_back({{1, Step{3}}, 2, {digest(1), digest(2)}});
  agree::VoteRules rules;
  const auto is_refused = [&] {
    const agree::Vote outcome = vote(scene, rules);
    const bool names_both =
        outcome.reason.find("step 4 on storage could not be read") == 0 &&
        outcome.reason.find("restore step 3 by its number") != std::string::npos;
    return !outcome.chosen && outcome.error == Errc::io && names_both;
  };
  SECTION("a directory") {
    scene.view.unreadable_steps = {{Step{4}, "open step-4: Permission denied"}};
    CHECK(is_refused());
    CHECK(vote(scene).reason.find("Permission denied") != std::string::npos);
    scene.view.unreadable_steps = {{Step{2}, "Permission denied"}};  // Nobody wants that one.
    CHECK(vote(scene).chosen == format::StepId{1, Step{3}});
    CHECK(vote(scene).reason.find("step 2 could not be read") != std::string::npos);
  }
  SECTION("a rank's file") {
    scene.view.published->push_back({{1, Step{4}}, 2, {digest(7), digest(8)}});
    scene.view.reports[1].damaged = {{{{1, Step{4}}, 1}, Errc::io}};
    CHECK(is_refused());
    // One that is damaged besides can be had by nobody.
    scene.view.reports[0].damaged = {{{{1, Step{4}}, 0}, Errc::corruption}};
    CHECK(vote(scene).chosen == format::StepId{1, Step{3}});
    // Nor is one in the way that was abandoned.
    scene.view.reports[0].damaged.clear();
    rules.history = {{1, {}}, {2, format::StepId{1, Step{3}}}};
    CHECK(vote(scene, rules).chosen == format::StepId{1, Step{3}});
    rules.history.clear();
  }
  scene.view.unreadable_steps = {{Step{4}, "Permission denied"}};
  rules.wanted = Step{3};  // One who names a step has chosen it.
  CHECK(vote(scene, rules).chosen == format::StepId{1, Step{3}});
  rules.wanted = Step{4};
  CHECK(vote(scene, rules).error == Errc::io);
}

TEST_CASE("vote: beside a history that cannot be read no step is chosen, also none by its number",
          "[unit][agree]") {
  Scene scene(2);
  scene.view.history_lost = "io: read timelines.json as user id 5 (Permission denied)";
  scene.view.is_history_unreadable = true;
  agree::VoteRules rules;
  const auto is_refused = [&] {
    const agree::Vote outcome = vote(scene, rules);
    return !outcome.chosen && outcome.error == Errc::io &&
           outcome.reason.find("as user id 5") != std::string::npos &&
           outcome.reason.find("by its number") == std::string::npos;
  };
  CHECK(is_refused());  // Nobody begins anew beside it.
  scene.view.published->push_back({{1, Step{3}}, 2, {digest(1), digest(2)}});
  CHECK(is_refused());
  rules.wanted = Step{3};
  CHECK(is_refused());
  // A step of another number of ranks would be read by names, and its ranks begin anew.
  scene.view.published->push_back({{1, Step{4}}, 3, {digest(1), digest(2), digest(3)}});
  rules.wanted.reset();
  CHECK(is_refused());
  scene.view.published->pop_back();
  CHECK_FALSE(agree::votes_without_each(scene.view, rules).front().chosen);
  rules.history = {{1, {}}};  // A node knows it.
  CHECK(vote(scene, rules).chosen == format::StepId{1, Step{3}});
  rules.history.clear();
  scene.view.is_history_unreadable = false;
  CHECK(vote(scene, rules).error == Errc::corruption);
  rules.wanted = Step{3};  // A lost one forbids no step that somebody names.
  CHECK(vote(scene, rules).chosen == format::StepId{1, Step{3}});
}

TEST_CASE("vote: memory serves beside a directory that could not be read", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 3);
  scene.view.unreadable_steps = {{Step{4}, "Permission denied"}};
  CHECK(vote(scene).chosen == format::StepId{1, Step{3}});
  CHECK(vote(scene).reason.find("step 4 could not be read") != std::string::npos);
  // A node knows that step 4 was stored, and nobody abandoned it.
  scene.view.reports[1].durable = {{1, Step{4}}};
  CHECK(vote(scene).error == Errc::io);
}

TEST_CASE("vote: storage that cannot be read is no empty storage", "[unit][agree]") {
  Scene scene(2);
  scene.view.unreadable = "io: list /scratch/job";
  CHECK(vote(scene).error == Errc::unavailable);
  CHECK(vote(scene).reason.find("storage cannot be read: io: list /scratch/job") !=
        std::string::npos);
  scene.hold_everywhere(1, 4);
  CHECK(vote(scene).chosen == format::StepId{1, Step{4}});  // Memory needs no storage.
}

TEST_CASE("vote: a newer step of another number of ranks is not passed by", "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 10);
  scene.view.published->push_back({{2, Step{20}}, 1, {digest(1)}});
  const agree::Vote outcome = vote(scene);
  REQUIRE_FALSE(outcome.chosen);
  REQUIRE(outcome.error == Errc::unsupported);
  REQUIRE(outcome.reason.find("step 20, was taken by 1 rank,") != std::string::npos);
  REQUIRE_FALSE(outcome.candidates.front().is_chosen);

  SECTION("unless this job has got on from it") {
    scene.hold_everywhere(3, 21);
    REQUIRE(vote(scene).chosen == format::StepId{3, Step{21}});
  }
  SECTION("nor where nothing else is left") {
    agree::VoteRules rules;
    rules.history = {{1, {}}, {2, format::StepId{1, Step{5}}}};  // Steps 6 to 10 were abandoned.
    const agree::Vote none = vote(scene, rules);
    REQUIRE(none.error == Errc::unsupported);
    REQUIRE(none.reason.find("step 20, was taken by 1 rank,") != std::string::npos);
  }
  SECTION("unless it was abandoned") {
    agree::VoteRules rules;
    rules.history = {{1, {}}, {3, format::StepId{1, Step{10}}}};
    REQUIRE(vote(scene, rules).chosen == format::StepId{1, Step{10}});
  }
  SECTION("unless another step is asked for") {
    agree::VoteRules rules;
    rules.wanted = Step{10};
    REQUIRE(vote(scene, rules).chosen == format::StepId{1, Step{10}});
  }
}

TEST_CASE("vote: another number of ranks' step counts while memory has all of it",
          "[unit][agree]") {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  const auto hold_of_three = [&](std::size_t node, std::uint32_t rank, std::uint64_t content) {
    scene.hold(node, 2, 9, rank, content);
    scene.view.reports[node].holdings.back().world_size = 3;
  };
  hold_of_three(0, 0, 7);
  hold_of_three(0, 1, 7);
  REQUIRE(vote(scene).chosen == format::StepId{1, Step{4}});  // Rank 2's is missing.
  CHECK(vote(scene).candidates.front().verdict ==
        "rejected: no copy of rank 2 (1 of 3 ranks missing)");
  hold_of_three(1, 2, 7);
  const agree::Vote outcome = vote(scene);
  REQUIRE(outcome.chosen == format::StepId{2, Step{9}});
  CHECK(outcome.digests == std::vector<Digest>{digest(7), digest(8), digest(9)});
  CHECK(outcome.holders == std::vector<std::vector<std::string>>{{"A"}, {"A"}, {"B"}});
  CHECK_FALSE(outcome.from_storage);
  CHECK(outcome.reason == "the newest that all ranks can have; 3 ranks saved it");
  CHECK(outcome.candidates.front().verdict == "chosen: every shard is in memory; 3 ranks saved it");

  SECTION("unless it was abandoned") {
    agree::VoteRules rules;
    rules.history = {{2, format::StepId{1, Step{4}}}, {3, format::StepId{2, Step{8}}}};
    CHECK(vote(scene, rules).chosen == format::StepId{1, Step{4}});
  }
  SECTION("a copy that is another save than the published one gives way to it") {
    scene.view.published->push_back({{2, Step{9}}, 3, {digest(7), digest(8), digest(99)}});
    const agree::Vote other = vote(scene);
    CHECK(other.chosen == format::StepId{2, Step{9}});
    CHECK(other.digests == std::vector<Digest>{digest(7), digest(8), digest(99)});
    CHECK(other.holders == std::vector<std::vector<std::string>>{{"A"}, {"A"}, {}});
    CHECK(other.from_storage);
  }
  SECTION("also beside a published one that is older") {
    scene.view.published->push_back({{2, Step{8}}, 3, {digest(7), digest(8), digest(9)}});
    CHECK(vote(scene).chosen == format::StepId{2, Step{9}});
  }
}

namespace {

// Nodes A and B. Three ranks saved step 9; memory has rank 0's shard on A and rank 1's on B.
Scene two_of_three() {
  Scene scene(2);
  scene.hold_everywhere(1, 4);
  for (const std::uint32_t rank : {0u, 1u}) {
    scene.hold(rank, 2, 9, rank);
    scene.view.reports[rank].holdings.back().world_size = 3;
  }
  return scene;
}

}  // namespace

TEST_CASE("vote: storage has what memory lacks of another number of ranks' step", "[unit][agree]") {
  Scene scene = two_of_three();
  const std::vector<Digest> digests{digest(7), digest(8), digest(9)};
  const auto refuses = [&] { return vote(scene).chosen != format::StepId{2, Step{9}}; };

  SECTION("of this very step") {
    scene.view.published->push_back({{2, Step{9}}, 3, digests});
    const agree::Vote outcome = vote(scene);
    REQUIRE(outcome.chosen == format::StepId{2, Step{9}});
    CHECK(outcome.digests == digests);
    CHECK(outcome.holders == std::vector<std::vector<std::string>>{{"A"}, {"B"}, {}});
    CHECK(outcome.from_storage);
    CHECK(outcome.candidates.front().verdict ==
          "chosen: some shards are read from storage; 3 ranks saved it");
    CHECK_FALSE(outcome.candidates.front().is_in_memory);
  }
  SECTION("not of another timeline") {
    scene.view.published->push_back({{1, Step{9}}, 3, digests});
    CHECK(refuses());
  }
  SECTION("not of another step") {
    scene.view.published->push_back({{2, Step{8}}, 3, digests});
    CHECK(refuses());
  }
  SECTION("not by another number of ranks") {
    std::vector<Digest> four = digests;
    four.push_back(digest(10));
    scene.view.published->push_back({{2, Step{9}}, 4, four});
    CHECK(refuses());
  }
  SECTION("not while nobody has read what storage has") {
    scene.view.published.reset();
    CHECK(vote(scene).chosen == format::StepId{1, Step{4}});
  }
  SECTION("not if it was abandoned") {
    scene.view.published->push_back({{2, Step{9}}, 3, digests});
    agree::VoteRules rules;
    rules.history = {{2, format::StepId{1, Step{4}}}, {3, format::StepId{2, Step{8}}}};
    CHECK(vote(scene, rules).chosen == format::StepId{1, Step{4}});
  }
}

TEST_CASE("vote: damage on storage counts where memory lacks the shard of another number of ranks",
          "[unit][agree]") {
  Scene scene = two_of_three();
  scene.view.published->push_back({{2, Step{9}}, 3, {digest(7), digest(8), digest(9)}});
  scene.view.reports[0].damaged = {{{{2, Step{9}}, 0}, Errc::corruption}};
  CHECK(vote(scene).chosen == format::StepId{2, Step{9}});  // Memory has that one.

  scene.view.reports[0].damaged.push_back({{{2, Step{9}}, 2}, Errc::corruption});
  const agree::Vote damaged = vote(scene);
  CHECK_FALSE(damaged.chosen);
  CHECK(damaged.error == Errc::unsupported);  // A restore by names may know more.
  CHECK(damaged.candidates.front().is_damaged);
  CHECK(damaged.candidates.front().verdict ==
        "rejected: no copy of it in memory, and the stored shard of rank 2 is damaged");

  for (format::NodeReport& node : scene.view.reports)
    std::erase_if(node.holdings, [](const auto& holding) { return holding.world_size != 3; });
  const agree::Vote nothing = vote(scene);
  CHECK(nothing.error == Errc::corruption);
  CHECK(nothing.reason ==
        "1 checkpoint on storage is damaged (see ckpt verify), and no other can be restored");

  scene.view.reports[0].damaged = {{{{2, Step{9}}, 2}, Errc::io}};
  CHECK(vote(scene).error == Errc::io);  // It may be good.
}

TEST_CASE("vote: a stored step of another number of ranks outlives a node while memory has some",
          "[unit][agree]") {
  Scene scene = two_of_three();
  scene.view.published->push_back({{2, Step{9}}, 3, {digest(7), digest(8), digest(9)}});
  const auto without_a = [&] { return agree::votes_without_each(scene.view, {}).front(); };
  CHECK(without_a().chosen == format::StepId{2, Step{9}});
  CHECK(without_a().from_storage);
  // Without node A no memory has any of it, and each trainer reads storage by itself.
  scene.view.reports[1].holdings.pop_back();
  REQUIRE(vote(scene).chosen == format::StepId{2, Step{9}});
  CHECK_FALSE(without_a().chosen);
}

TEST_CASE("vote: an incomplete step of another number of ranks is not no step", "[unit][agree]") {
  Scene scene(2);
  scene.hold(0, 1, 9, 0);
  scene.view.reports[0].holdings.back().world_size = 3;
  scene.view.reports[0].committed = format::StepId{1, Step{8}};
  const agree::Vote outcome = vote(scene);
  CHECK(outcome.error == Errc::unsupported);
  CHECK(outcome.reason ==
        "the steps in memory were saved by 3 ranks, this job has 2; the newest seen is step 9, "
        "rejected: no copy of rank 1 (2 of 3 ranks missing): start_fresh() begins without");
}

// As with the same number of ranks: a job that died in its first step begins anew.
TEST_CASE("vote: where no step of another number of ranks was ever committed, there is none",
          "[unit][agree]") {
  Scene scene(2);
  scene.hold(0, 1, 9, 0);
  scene.view.reports[0].holdings.back().world_size = 3;
  const agree::Vote outcome = vote(scene);
  CHECK(outcome.error == Errc::not_found);
  CHECK(outcome.reason.find("(2 of 3 ranks missing): none was committed") != std::string::npos);
}

TEST_CASE("vote: memory that disagrees with what was published is not used", "[unit][agree]") {
  Scene scene(1);
  scene.hold(0, 1, 5, 0, 7);
  scene.view.published->push_back({{1, Step{5}}, 1, {digest(99)}});
  const agree::Vote outcome = vote(scene);
  REQUIRE(outcome.chosen == format::StepId{1, Step{5}});
  REQUIRE(outcome.digests.front() == digest(99));
  REQUIRE(outcome.from_storage);
}
