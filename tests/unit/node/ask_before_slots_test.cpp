// Goal:   a restore that is asked for before its Slots are there is answered where there is nothing
//         to restore, waits for them where there is, and ends with the reason where they cannot be
//         had.
// Method: a rank that asks first and tells its layout later, and one whose layout is too large, on
//         a disk in memory. A layout that is taken back at every point of its Slots' making.
#include "unit/node/two_steps.hpp"

namespace ckpt::node {

TEST_CASE("ask before Slots: a job that begins does not wait for them", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  REQUIRE(rank.attach_only());
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{1, std::nullopt}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  CHECK(rank.answer->result);
  CHECK_FALSE(rank.answer->restored);
  CHECK(rank.times_ready == 0);
  REQUIRE(rank.tell_layout(rank.tensor_bytes, 1));
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
}

TEST_CASE("ask before Slots: what there is waits for them", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::save_two_steps(disk);
  test::OneRank rank(disk);
  REQUIRE(rank.attach_only());
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{1, std::nullopt}));
  rank.clock.advance(std::chrono::seconds(30));
  REQUIRE_FALSE(rank.answer);
  REQUIRE(rank.tell_layout(rank.tensor_bytes, 1));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  REQUIRE((rank.answer->result ? "" : rank.answer->result.error().message()) == "");
  REQUIRE(rank.answer->restored);
  CHECK(rank.answer->restored->step == Step{2});
}

TEST_CASE("ask before Slots: without a place for its bytes a restore ends for all",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::save_two_steps(disk);
  test::OneRank rank(disk);
  rank.may_lack_slots = true;
  rank.tensor_bytes = 64 * MiB;
  REQUIRE(rank.attach());
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{1, std::nullopt}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  REQUIRE_FALSE(rank.answer->result);
  CHECK(rank.answer->result.error().code() == Errc::exhausted);  // As docs/limits.md promises.
  CHECK(rank.answer->result.error().text().find("rank 0") != std::string::npos);
  CHECK(rank.answer->result.error().text().find("may use 16.0 MiB") != std::string::npos);
}

TEST_CASE("ask before Slots: a failure of what is not wanted any more is none", "[unit][node]") {
  for (int handlers = 0; handlers < 12; ++handlers) {
    CAPTURE(handlers);
    test::MemoryDisk disk(1);
    disk.put_directory("/scratch");
    test::OneRank rank(disk);
    rank.may_lack_slots = true;
    rank.memory.allocations_left = 1;
    rank.tensor_bytes = 1 * MiB;
    REQUIRE(rank.attach());
    for (int run = 0; run < handlers; ++run) rank.context.poll_one();
    rank.memory.allocations_left.reset();
    REQUIRE(rank.tell_layout(3 * KiB, 2));
    REQUIRE(rank.engine->call(rank.session, control::StartFresh{1}));
    REQUIRE(rank.pass_until([&] { return rank.granted.size() >= 2; }));
  }
}

}  // namespace ckpt::node
