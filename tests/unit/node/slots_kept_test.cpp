// Goal:   a Slot is given up only for something better: the newest committed step outlives restores
//         of older steps that did not succeed, and a capture that is refused gives its Slot back.
//         Slots serve a restore whose layout asks for more than the budget has.
// Method: a rank with few Slots, on a disk in memory; restores that are asked for and given up.
#include <cerrno>

#include "unit/node/two_steps.hpp"

namespace ckpt::node {

TEST_CASE("slots kept: restores of older steps that were given up cost no committed step",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.request.own_slots = 3;
  rank.begin_and_store_two_steps();
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  rank.capture(Step{3});
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{3}; }));
  disk.set_hook([](std::string_view verb, const std::string& path) {
    const bool is_data = path.find("/.step-") != std::string::npos;
    return verb == "write" && is_data ? ENOSPC : 0;
  });
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  rank.capture(Step{4});  // In memory alone.
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{4}; }));

  rank.keeps_offers = true;
  for (const std::uint64_t older : {1, 2, 3}) {  // Each takes a Slot, and there are three in all.
    REQUIRE(rank.engine->call(rank.session, control::AskRestore{older + 1, Step{older}}));
    REQUIRE(rank.pass_until([&] { return rank.offers.size() == older; }));
    REQUIRE(rank.offers.back().record->id.at.step == Step{older});
  }
  rank.engine->detach(rank.session);
  rank.keeps_offers = false;
  rank.answer.reset();
  const auto restored = rank.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{4});
  CHECK_FALSE(rank.is_wrong);
}

TEST_CASE("slots kept: a Slot that was not granted is not written into", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  REQUIRE(rank.begin_fresh());
  REQUIRE(rank.begin_capture(Step{1}));
  const std::uint64_t generation = rank.slots.at(rank.filling).generation;
  REQUIRE(rank.engine->call(rank.session, control::Abandon{rank.filling, generation}));
  // It is free, and not granted again yet.
  const Status refused = rank.engine->call(rank.session, rank.begin_of(rank.filling, Step{2}));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
}

TEST_CASE("slots kept: a capture of an unknown layout gives its Slot back", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  REQUIRE(rank.begin_fresh());
  const std::size_t all = rank.granted.size();
  REQUIRE(rank.begin_capture(Step{1}));
  const std::uint32_t version = std::exchange(rank.layout.version, 7);
  const Status refused = rank.end_capture(Step{1});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  REQUIRE(rank.pass_until([&] { return rank.granted.size() == all; }));
  rank.layout.version = version;
  rank.capture(Step{2});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{2}; }));
}

namespace {

// One step is in memory, and its trainer is gone.
void leave_a_step(test::OneRank& rank) {
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  rank.engine->detach(rank.session);
  rank.answer.reset();
  rank.slots.clear();  // The next trainer has mapped none.
}

void require_restored(test::OneRank& rank) {
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{1, std::nullopt}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  REQUIRE((rank.answer->result ? "" : rank.answer->result.error().message()) == "");
  REQUIRE(rank.answer->restored);
  CHECK(rank.answer->restored->step == Step{1});
  CHECK_FALSE(rank.is_wrong);
}

}  // namespace

TEST_CASE("slots kept: without room for larger Slots a restore takes what is in those there are",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk, 3 * MiB);
  leave_a_step(rank);
  const format::Layout saved = rank.layout;
  rank.may_lack_slots = true;
  REQUIRE(rank.attach_only());
  REQUIRE(rank.tell_layout(5 * MiB, 2));
  REQUIRE(rank.pass_until([&] { return rank.no_slots.has_value(); }));
  CHECK(rank.no_slots->code() == Errc::exhausted);  // For captures.
  rank.layout = saved;
  rank.tensor_bytes = 3 * MiB;
  require_restored(rank);
}

namespace {

// FillingRank: a trainer in mid-capture, and the next one in its place.
struct FillingRank {
  explicit FillingRank(bool is_by_gpu) {
    disk.put_directory("/scratch");
    REQUIRE(rank.begin_fresh());
    all = rank.granted.size();
    REQUIRE(rank.begin_capture(Step{1}));
    const std::uint64_t generation = rank.slots.at(rank.filling).generation;
    if (is_by_gpu)
      REQUIRE(rank.engine->call(rank.session, control::Arrived{rank.filling, generation, 0}));
    rank.granted.clear();
    rank.answer.reset();
  }
  void start_fresh() {
    REQUIRE(rank.engine->call(rank.session, control::StartFresh{2}));
    REQUIRE(rank.pass_until([&] { return rank.granted.size() == all; }));
  }
  void commit_step() {
    rank.capture(Step{2});
    REQUIRE(rank.pass_until([&] { return rank.committed == Step{2}; }));
  }

  test::MemoryDisk disk{1};
  test::OneRank rank{disk};
  std::size_t all = 0;  // Slots that a trainer is granted.
};

// The trainer dies in mid-capture; returns how long its Slot is kept from the next one.
std::chrono::nanoseconds pause_after_death(bool is_by_gpu, bool is_fenced_first) {
  FillingRank filling(is_by_gpu);
  test::OneRank& rank = filling.rank;
  const SessionId dying = rank.session;
  if (!is_fenced_first) rank.engine->detach(dying);
  REQUIRE(rank.attach());
  if (is_fenced_first) {
    // It lives on for a while, and its GPU copies.
    REQUIRE_FALSE(rank.pass_until([&] { return !rank.granted.empty(); }));
    rank.engine->detach(dying);
  }
  const Time died_at = rank.clock.now();
  filling.start_fresh();
  const auto pause = rank.clock.now() - died_at;
  filling.commit_step();
  return pause;
}

}  // namespace

TEST_CASE("slots kept: a Slot that a GPU filled rests after the trainer's death", "[unit][node]") {
  // Forked workers may keep the device's files open: its copies then go on for a moment.
  const bool is_fenced_first = GENERATE(false, true);
  INFO((is_fenced_first ? "fenced before its death" : "not fenced"));
  CHECK(pause_after_death(false, is_fenced_first) < std::chrono::seconds(3));
  CHECK(pause_after_death(true, is_fenced_first) >= std::chrono::seconds(5));
}

TEST_CASE("slots kept: memory that is given back does not wait for a GPU", "[unit][node]") {
  FillingRank filling(true);
  test::OneRank& rank = filling.rank;
  rank.engine->detach(rank.session);
  rank.granted.clear();
  REQUIRE(rank.attach_only());
  REQUIRE(rank.tell_layout(64 * KiB, 2));  // Larger: all Slots are made anew.
  filling.start_fresh();
  filling.commit_step();
}

}  // namespace ckpt::node
