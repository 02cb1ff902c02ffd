// Goal:   a restore begins with the first Slot and never waits for the others, which captures get
//         all at once; where the others cannot be had, the restore succeeds and captures do not.
// Method: a rank on a disk in memory whose Slots take their time, one after the other.
#include "unit/node/two_steps.hpp"

namespace ckpt::node {

namespace {

// SlowSlots: a disk with two steps, and a rank whose Slots take ten seconds each.
struct SlowSlots {
  explicit SlowSlots(std::uint64_t bytes = 3 * KiB) : rank(with_steps(disk, bytes), bytes) {
    rank.memory.clock = &rank.clock;
    rank.memory.time_each = std::chrono::seconds(10);
    REQUIRE(rank.attach_only());
  }
  static test::MemoryDisk& with_steps(test::MemoryDisk& disk, std::uint64_t bytes) {
    disk.put_directory("/scratch");
    test::OneRank rank(disk, bytes);
    rank.begin_and_store_two_steps();
    test::close(rank);
    return disk;
  }
  void tell_layout(std::uint64_t bytes = 3 * KiB) { REQUIRE(rank.tell_layout(bytes, ++layouts)); }
  void ask(std::optional<Step> wanted = std::nullopt) {
    rank.answer.reset();
    REQUIRE(rank.engine->call(rank.session, control::AskRestore{++asks, wanted}));
  }
  void require_restored(Step step) {
    REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
    REQUIRE((rank.answer->result ? "" : rank.answer->result.error().message()) == "");
    REQUIRE(rank.answer->restored);
    CHECK(rank.answer->restored->step == step);
    CHECK_FALSE(rank.is_wrong);
  }
  bool are_for_restores() const {
    return std::ranges::all_of(rank.slots, &ReadySlot::is_for_restore);
  }
  bool is_used(const std::string& bytes) const {
    return rank.engine->status_json().find("\"used_bytes\": " + bytes) != std::string::npos;
  }

  test::MemoryDisk disk{1};
  test::OneRank rank;
  std::uint32_t layouts = 0;
  std::uint64_t asks = 0;
};

}  // namespace

TEST_CASE("first Slot: a restore is over before the second one is there", "[unit][node]") {
  SlowSlots slow;
  test::OneRank& rank = slow.rank;
  slow.tell_layout();
  slow.ask();
  slow.require_restored(Step{2});
  CHECK(rank.slots.size() == 1);
  CHECK(slow.are_for_restores());
  // Captures wait for all, and find them as they would without a restore.
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  CHECK(rank.slots.size() == 4);
  CHECK(std::ranges::none_of(rank.slots, &ReadySlot::is_for_restore));
  REQUIRE(rank.pass_until([&] { return rank.granted.size() == 3; }));  // One holds step 2.
  rank.capture(Step{3});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{3}; }));
}

TEST_CASE("first Slot: a restore that is asked for later finds those that there are",
          "[unit][node]") {
  SlowSlots slow;
  slow.tell_layout();
  REQUIRE(slow.rank.pass_until([&] { return slow.rank.slots.size() == 2; }));
  slow.ask();
  slow.require_restored(Step{2});
  CHECK(slow.rank.slots.size() == 2);
}

TEST_CASE("first Slot: one that is for a smaller layout is not what a restore waits for",
          "[unit][node]") {
  SlowSlots slow(24 * KiB);
  slow.tell_layout(3 * KiB);
  REQUIRE(slow.rank.pass_until([&] { return slow.rank.slots.size() == 1; }));
  slow.tell_layout(24 * KiB);
  slow.ask();
  slow.require_restored(Step{2});
}

TEST_CASE("first Slot: while it holds the committed step, another one waits for the next Slot",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  rank.engine->detach(rank.session);
  rank.slots.clear();  // The next trainer has mapped none.
  rank.memory.clock = &rank.clock;
  rank.memory.time_each = std::chrono::minutes(1);  // Longer than a restore is tried again.
  const format::Layout saved = rank.layout;
  REQUIRE(rank.attach_only());
  REQUIRE(rank.tell_layout(24 * KiB, 2));
  rank.layout = saved;
  rank.tensor_bytes = 3 * KiB;

  rank.keeps_offers = true;
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{2, std::nullopt}));
  REQUIRE(rank.pass_until([&] { return rank.offers.size() == 1; }));
  CHECK(rank.offers.back().record->id.at.step == Step{2});
  CHECK(rank.slots.size() == 1);
  rank.answer.reset();
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{3, Step{1}}));
  REQUIRE(rank.pass_until([&] { return rank.offers.size() == 2 || rank.answer; }));
  REQUIRE(rank.offers.size() == 2);
  CHECK(rank.offers.back().record->id.at.step == Step{1});
  CHECK(rank.offers.back().slot == 1);
  CHECK(rank.slots.size() == 2);
  rank.keeps_offers = false;
  rank.offered(rank.offers.back());
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  CHECK(rank.answer->result);
  CHECK_FALSE(rank.is_wrong);
}

TEST_CASE("first Slot: without memory for the others the restore succeeds, and no capture begins",
          "[unit][node]") {
  SlowSlots slow;
  test::OneRank& rank = slow.rank;
  rank.may_lack_slots = true;
  rank.memory.allocations_left = 2;
  SECTION("before the restore") {
    slow.tell_layout();
    REQUIRE(rank.pass_until([&] { return rank.no_slots.has_value(); }));
    CHECK(rank.slots.size() == 2);
    slow.ask();
  }
  SECTION("while the step is offered") {
    rank.keeps_offers = true;
    slow.tell_layout();
    slow.ask();
    REQUIRE(rank.pass_until([&] { return rank.no_slots && !rank.offers.empty(); }));
    rank.keeps_offers = false;
    rank.offered(rank.offers.back());
  }
  SECTION("after the restore") {
    slow.tell_layout();
    slow.ask();
  }
  slow.require_restored(Step{2});
  REQUIRE(rank.pass_until([&] { return rank.no_slots && rank.slots.empty(); }));
  CHECK(rank.no_slots->code() == Errc::exhausted);
  CHECK(rank.granted.empty());
  CHECK(slow.is_used("8192"));  // The restored step stays, for the next restart.
  // With memory again, another try brings them all.
  rank.memory.allocations_left.reset();
  slow.tell_layout();
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  CHECK(rank.slots.size() == 4);
  rank.capture(Step{3});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{3}; }));
}

TEST_CASE("first Slot: a job that begins gives them back where the others cannot be had",
          "[unit][node]") {
  SlowSlots slow;
  test::OneRank& rank = slow.rank;
  rank.may_lack_slots = true;
  rank.memory.allocations_left = 1;
  slow.tell_layout();
  SECTION("before it is known") {
    REQUIRE(rank.engine->call(rank.session, control::StartFresh{1}));
    REQUIRE(rank.pass_until([&] { return rank.no_slots.has_value(); }));
  }
  SECTION("when it is known") {
    REQUIRE(rank.pass_until([&] { return rank.no_slots.has_value(); }));
    REQUIRE(rank.engine->call(rank.session, control::StartFresh{1}));
  }
  REQUIRE(rank.pass_until([&] { return rank.answer && rank.slots.empty(); }));
  CHECK(rank.granted.empty());
  CHECK(slow.is_used("0"));
}

TEST_CASE("first Slot: those that are there serve captures while more are made", "[unit][node]") {
  SlowSlots slow;
  test::OneRank& rank = slow.rank;
  slow.tell_layout();
  slow.ask();
  slow.require_restored(Step{2});
  REQUIRE(rank.pass_until([&] { return rank.granted.size() == 3; }));
  rank.engine->detach(rank.session);
  rank.granted.clear();
  rank.request.own_slots = 6;
  rank.may_lack_slots = true;
  const bool is_short = GENERATE(false, true);
  if (is_short) rank.memory.allocations_left = 1;
  REQUIRE(rank.attach_only());
  slow.tell_layout();
  slow.ask();
  slow.require_restored(Step{2});
  CHECK(rank.slots.size() == 4);
  REQUIRE(rank.pass_until([&] { return rank.granted.size() == 3; }));
  CHECK(rank.slots.size() == 4);
  // Those that came stay, although others cannot be had.
  const std::size_t all = is_short ? 5 : 6;
  REQUIRE(rank.pass_until([&] { return rank.granted.size() == all - 1; }));
  CHECK(rank.slots.size() == all);
  REQUIRE(rank.pass_until([&] { return rank.no_slots.has_value() == is_short; }));
  rank.clock.advance(std::chrono::seconds(1));
  CHECK(rank.slots.size() == all);
}

}  // namespace ckpt::node
