// Goal:   storage that hangs keeps nobody from what memory has: the trainer that starts again gets
//         its newest step, and learns that storage was left out.
// Method: the disk answers nothing for an hour; the trainer is gone, and comes again.
#include <catch2/catch.hpp>

#include "unit/node/one_rank.hpp"

using Catch::Contains;

namespace ckpt::node {

TEST_CASE("hung storage: a restore from memory does not wait for it", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  const Time hangs_from = rank.clock.now();
  disk.stall_until(hangs_from + std::chrono::hours(1));
  rank.capture(Step{3});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{3}; }));
  const std::uint64_t timeline = rank.answer->timeline;

  rank.engine->detach(rank.session);
  rank.answer.reset();
  const auto restored = rank.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{3});
  CHECK(rank.answer->timeline > timeline);
  CHECK(rank.clock.now() < hangs_from + std::chrono::seconds(15));
  CHECK_THAT(rank.answer->reason, Contains("storage did not answer, and was left out"));
  rank.clock.advance(std::chrono::seconds(5));
  CHECK_THAT(rank.notice.degraded, Contains("storage does not answer"));

  // It goes on from there, and stores again once storage answers. Its timeline is recorded then.
  rank.capture(Step{4});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{4}; }));
  rank.clock.advance(hangs_from + std::chrono::hours(1) - rank.clock.now());
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{4}; }));
  rank.clock.advance(std::chrono::seconds(10));
  CHECK(rank.notice.degraded.empty());
  CHECK_THAT(disk.content("/scratch/job/.libckpt/timelines.json"),
             Contains(std::to_string(rank.answer->timeline)));
}

TEST_CASE("hung storage: nothing older is restored than what is known to be stored",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  const Time hangs_from = rank.clock.now();
  disk.stall_until(hangs_from + std::chrono::minutes(2));
  // The memory of step 2 rots: what is left is on storage.
  for (std::uint32_t slot = 0; slot < rank.slots.size(); ++slot)
    std::ranges::fill(rank.tensor_in(slot), std::byte{});
  rank.engine->detach(rank.session);
  rank.answer.reset();
  rank.verifies_offers = true;
  const auto restored = rank.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{2});
  CHECK(rank.clock.now() >= hangs_from + std::chrono::minutes(2));
  CHECK_FALSE(rank.is_wrong);
}

TEST_CASE("hung storage: old memory gives way to what was stored elsewhere meanwhile",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank older(disk);
  older.begin_and_store_two_steps();
  older.engine->detach(older.session);
  older.answer.reset();
  {
    test::OneRank elsewhere(disk);
    elsewhere.request.save_storage_interval.steps = 1;
    const auto there = elsewhere.restore();
    REQUIRE((there ? "" : there.error().message()) == "");
    REQUIRE(*there == Step{2});
    REQUIRE(elsewhere.pass_until([&] { return !elsewhere.granted.empty(); }));
    elsewhere.capture(Step{3});
    REQUIRE(elsewhere.pass_until([&] { return elsewhere.durable == Step{3}; }));
  }
  // Storage answers again after the step was chosen, and before the timeline is claimed.
  disk.stall_until(older.clock.after(std::chrono::seconds(4)));
  const auto blind = older.restore();
  REQUIRE_FALSE(blind);
  CHECK(blind.error().code() == Errc::unavailable);
  CHECK_THAT(blind.error().text(),
             Contains("another daemon has begun timeline 2 of this job there: restore again"));

  older.engine->detach(older.session);
  older.answer.reset();
  const auto restored = older.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{3});
}

TEST_CASE("hung storage: a record of timelines that hangs is reported", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  rank.engine->detach(rank.session);
  rank.answer.reset();
  const Time hangs_to = rank.clock.after(std::chrono::minutes(5));
  // As a frozen disk: what was read before is read again, and only writes hang.
  disk.set_hook([&](std::string_view, const std::string& path) {
    if (path.find("/.libckpt/") != std::string::npos) disk.stall_until(hangs_to);
    return 0;
  });
  const auto restored = rank.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{2});
  rank.clock.advance(std::chrono::seconds(20));
  CHECK_THAT(rank.notice.degraded, Contains("storage has not answered a write of timelines for "));
  disk.set_hook(nullptr);
  rank.clock.advance(hangs_to - rank.clock.now());
  rank.clock.advance(std::chrono::seconds(10));
  CHECK(rank.notice.degraded.empty());
}

}  // namespace ckpt::node
