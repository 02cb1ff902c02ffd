// Goal:   what a trainer answers late, to a restore that it gave up, is never taken for the answer
//         to the restore that it asked for since: its tensors would have another step than it is
//         told.
// Method: a rank that answers by hand asks for one step, then for another, and answers the first
//         offer when the second was made.
#include <catch2/catch.hpp>

#include "unit/node/one_rank.hpp"

namespace ckpt::node {

TEST_CASE("restore: a late answer to an offer does not count for the next one", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  rank.keeps_offers = true;
  rank.answer.reset();
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{2, Step{1}}));
  REQUIRE(rank.pass_until([&] { return rank.offers.size() == 1; }));
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{3, Step{2}}));
  REQUIRE(rank.pass_until([&] { return rank.offers.size() == 2; }));
  REQUIRE(rank.offers[0].record->id.at.step == Step{1});
  REQUIRE(rank.offers[1].record->id.at.step == Step{2});

  REQUIRE(rank.engine->call(rank.session, control::RestoreResult{rank.offers[0].offer, {}}));
  const Time soon = rank.clock.after(std::chrono::seconds(1));
  (void)rank.pass_until([&] { return rank.answer.has_value() || rank.clock.now() >= soon; });
  CHECK_FALSE(rank.answer);

  REQUIRE(rank.engine->call(rank.session, control::RestoreResult{rank.offers[1].offer, {}}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  REQUIRE(rank.answer->restored);
  CHECK(rank.answer->restored->step == Step{2});
  CHECK(rank.answer->ask == 3);
  CHECK(rank.offers[1].ask == 3);
}

}  // namespace ckpt::node
