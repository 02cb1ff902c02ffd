// Goal:   a step that was restored has its levels: captured and committed at once, durable when it
// is
//         on storage; and no step that the restore abandoned has any.
// Method: trainers of one rank, on one disk in memory, restore from memory and from storage; the
//         events of each restore are kept apart. In a job of several nodes all of them get them.
#include <fmt/format.h>

#include "unit/node/one_rank.hpp"
#include "unit/node/worlds.hpp"

namespace ckpt::node {
namespace {

struct LevelsDirectory {
  LevelsDirectory() : disk(1) { disk.put_directory("/scratch"); }

  bool has(std::uint64_t step) const {
    return disk.exists(fmt::format("/scratch/job/step-{:09}/manifest.json", step));
  }
  test::MemoryDisk disk;
};

void forget_levels(test::OneRank& rank) {
  rank.answer.reset();
  rank.captured = rank.committed = rank.durable = Step{};
}

// The levels come with the answer, and before a Slot is granted.
void restore_again(test::OneRank& rank, std::optional<Step> wanted = std::nullopt) {
  forget_levels(rank);
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{1, wanted}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  REQUIRE(rank.answer->result);
  REQUIRE(rank.answer->restored);
}

void restart_trainer(test::OneRank& rank) {
  rank.engine->detach(rank.session);
  rank.granted.clear();
  forget_levels(rank);
}

}  // namespace

TEST_CASE("restored levels: from memory a step is committed, and stored for who waits for it",
          "[unit][node]") {
  LevelsDirectory directory;
  test::OneRank rank(directory.disk);
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  SECTION("a new trainer") {
    restart_trainer(rank);
    REQUIRE(rank.restore().value() == Step{1});
  }
  SECTION("the same trainer") {
    restore_again(rank);
  }
  CHECK(rank.committed == Step{1});
  CHECK(rank.durable == Step{});
  CHECK_FALSE(directory.has(1));
  const std::uint64_t waited_for = GENERATE(0, 1);  // One before it is stored by it.
  REQUIRE(rank.engine->call(rank.session, control::Flush{Step{waited_for}}));
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{1}; }));
  CHECK(directory.has(1));
}

TEST_CASE("restored levels: a wait for a step after the restored one stores that", "[unit][node]") {
  LevelsDirectory directory;
  test::OneRank rank(directory.disk);
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  restore_again(rank);
  REQUIRE(rank.engine->call(rank.session, control::Flush{Step{2}}));
  REQUIRE(rank.pass_until([&] { return rank.granted.size() >= 2; }));
  rank.capture(Step{2});
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{2}; }));
  CHECK_FALSE(directory.has(1));
}

TEST_CASE("restored levels: a step on storage is durable at once", "[unit][node]") {
  LevelsDirectory directory;
  {
    test::OneRank rank(directory.disk);
    rank.begin_and_store_two_steps();
    restart_trainer(rank);
    REQUIRE(rank.restore().value() == Step{2});  // From memory.
    CHECK(rank.committed == Step{2});
    CHECK(rank.durable == Step{2});
  }
  test::OneRank rank(directory.disk);
  REQUIRE(rank.restore().value() == Step{2});
  REQUIRE(rank.fillings.back().source_name == "storage");
  CHECK(rank.committed == Step{2});
  CHECK(rank.durable == Step{2});
}

TEST_CASE("restored levels: from memory, what storage had before is known", "[unit][node]") {
  LevelsDirectory directory;
  test::OneRank rank(directory.disk);
  rank.request.save_storage_interval.steps = 2;
  REQUIRE(rank.begin_fresh());
  for (const std::uint64_t step : {2, 3}) {
    REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
    rank.capture(Step{step});
    REQUIRE(rank.pass_until([&] { return rank.committed == Step{step}; }));
    REQUIRE(rank.pass_until([&] { return rank.durable == Step{2}; }));
  }
  restart_trainer(rank);
  REQUIRE(rank.restore().value() == Step{3});
  CHECK(rank.committed == Step{3});
  CHECK(rank.durable == Step{2});
  CHECK_FALSE(directory.has(3));
}

TEST_CASE("restored levels: each node knows what storage had before", "[unit][node]") {
  test::Cluster cluster;
  test::Rules rules;
  rules.directory = "/scratch";
  cluster.begin("ABC", rules);
  cluster.store(Step{2});
  cluster.commit(Step{3});
  cluster.begin("ABC", rules);
  cluster.check_restored(Step{3}, 3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    CHECK(cluster.pass_until([&] { return cluster.rank(rank).durable == Step{2}; }));
    CHECK(cluster.rank(rank).committed == Step{3});
  }
}

TEST_CASE("restored levels: an older step has them, the abandoned ones have none", "[unit][node]") {
  LevelsDirectory directory;
  test::OneRank rank(directory.disk);
  rank.begin_and_store_two_steps();
  restore_again(rank, Step{1});
  CHECK(rank.committed == Step{1});
  REQUIRE(rank.pass_until([&] { return rank.durable != Step{}; }));
  CHECK(rank.durable == Step{1});
  rank.clock.advance(std::chrono::seconds(5));
  CHECK(rank.captured == Step{});
  CHECK(rank.committed == Step{1});
  CHECK(rank.durable == Step{1});
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  rank.capture(Step{2});  // The other step 2 is still there.
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{2}; }));
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{2}; }));
}

TEST_CASE("restored levels: a step whose directory was removed is not durable", "[unit][node]") {
  LevelsDirectory directory;
  test::OneRank rank(directory.disk);
  rank.begin_and_store_two_steps();
  directory.disk.erase("/scratch/job/step-000000002");
  restore_again(rank);
  CHECK(rank.answer->restored->step == Step{2});  // Of memory.
  rank.clock.advance(std::chrono::seconds(5));
  CHECK(rank.committed == Step{2});
  CHECK(rank.durable == Step{});
}

TEST_CASE("restored levels: a daemon that starts again knows the step that was restored",
          "[unit][node]") {
  LevelsDirectory directory;
  std::optional<control::Continuation> continuation;
  {
    test::OneRank rank(directory.disk);
    rank.begin_and_store_two_steps();
    restore_again(rank);
    continuation = {rank.answer->start_id, rank.answer->timeline};
  }
  test::OneRank rank(directory.disk);
  rank.request.continuation = continuation;
  REQUIRE(rank.attach());
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{2}; }));
}

}  // namespace ckpt::node
