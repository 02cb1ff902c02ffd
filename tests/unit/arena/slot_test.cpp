// Goal:   a trainer that dies mid-copy must never leave bytes that a peer could restore, and bytes
//         that somebody reads are never recycled.
// Method: walk one Slot along every legal edge of its state machine, then try the illegal ones and
//         require the assertion that guards each.
#include "arena/slot.hpp"

#include <catch2/catch.hpp>

#include "arena/arena_limits.hpp"
#include "base/units.hpp"
#include "support/assertion_trap.hpp"

using namespace ckpt;
using arena::Lease;
using arena::Slot;

namespace {

class PlainMemory final : public arena::SlotMemory {
 public:
  std::span<std::byte> bytes() override { return bytes_; }
  std::vector<os::FileSpan> file_spans(std::uint64_t offset, std::uint64_t bytes) override {
    return {os::FileSpan{std::span(bytes_).subspan(offset, bytes), -1, 0}};
  }
  std::vector<arena::SegmentView> segments() const override { return {}; }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(8 * KiB);
};

struct SlotFixture {
  const format::ShardId id{{1, Step{7}}, 0};
  std::shared_ptr<Slot> slot = std::make_shared<Slot>(std::make_unique<PlainMemory>());

  std::shared_ptr<const format::ShardRecord> record(format::ShardId of, std::uint64_t bytes) const {
    auto record = std::make_shared<format::ShardRecord>();
    record->id = of;
    record->bytes = bytes;
    return record;
  }
  std::shared_ptr<const format::ShardRecord> record() const { return record(id, 4 * KiB); }
  void seal() {
    slot->begin_fill(id);
    slot->filled();
    slot->seal(record());
  }
};

}  // namespace

TEST_CASE_METHOD(SlotFixture, "slot: an abandoned fill is never readable", "[unit][arena]") {
  slot->begin_fill(id);
  REQUIRE_TRIPS(Lease(slot));
  slot->abandon();
  REQUIRE_TRIPS(Lease(slot));
  REQUIRE(slot->state() == Slot::State::free);
}

TEST_CASE_METHOD(SlotFixture, "slot: filled is not sealed", "[unit][arena]") {
  slot->begin_fill(id);
  slot->filled();
  REQUIRE_TRIPS(Lease(slot));
  slot->abandon();
  REQUIRE(slot->state() == Slot::State::free);
}

TEST_CASE_METHOD(SlotFixture, "slot: a leased Slot is retired when the last Lease ends",
                 "[unit][arena]") {
  seal();
  Lease first(slot);
  auto second = std::make_unique<Lease>(slot);
  slot->retire();
  REQUIRE(slot->state() == Slot::State::sealed);
  REQUIRE_TRIPS(Lease(slot));
  second.reset();
  REQUIRE(slot->state() == Slot::State::sealed);
  first.reset();
  REQUIRE(slot->state() == Slot::State::free);
}

TEST_CASE_METHOD(SlotFixture, "slot: a quarantined one serves nobody and can be freed",
                 "[unit][arena]") {
  seal();
  slot->quarantine();
  REQUIRE_TRIPS(Lease(slot));
  slot->retire();
  REQUIRE(slot->state() == Slot::State::free);
}

TEST_CASE_METHOD(SlotFixture, "slot: only a free Slot is filled, only a filled one sealed",
                 "[unit][arena]") {
  REQUIRE_TRIPS(slot->filled());
  REQUIRE_TRIPS(slot->seal(record()));
  seal();
  REQUIRE_TRIPS(slot->begin_fill(id));
  REQUIRE_TRIPS(slot->abandon());
}

TEST_CASE_METHOD(SlotFixture, "slot: it is sealed as what it was filled with, and within its bytes",
                 "[unit][arena]") {
  slot->begin_fill(id);
  slot->filled();
  format::ShardId other = id;
  other.at.timeline = 2;
  REQUIRE_TRIPS(slot->seal(record(other, 4 * KiB)));
  other = id;
  other.at.step = Step{8};
  REQUIRE_TRIPS(slot->seal(record(other, 4 * KiB)));
  other = id;
  other.rank = 1;
  REQUIRE_TRIPS(slot->seal(record(other, 4 * KiB)));
  REQUIRE_TRIPS(slot->seal(record(id, 8 * KiB + 1)));
  REQUIRE_TRIPS(slot->seal(nullptr));
  slot->seal(record(id, 8 * KiB));  // All that it has.
  REQUIRE(slot->state() == Slot::State::sealed);
}

TEST_CASE_METHOD(SlotFixture, "slot: after one shard it shows nothing of it to the next",
                 "[unit][arena]") {
  slot->begin_fill(id);
  slot->filled();
  slot->note_copies({{"norm", {1, 2}, 3}});
  slot->seal(record(id, 4 * KiB));
  REQUIRE(slot->copies()->front().crc == 3);
  const Digest first = slot->digest();
  auto lease = std::make_unique<Lease>(slot);
  slot->retire();
  REQUIRE(slot->is_retiring());
  lease.reset();
  REQUIRE_FALSE(slot->is_retiring());
  REQUIRE(slot->record() == nullptr);
  REQUIRE(slot->copies() == nullptr);
  REQUIRE(slot->digest() == Digest{});
  REQUIRE(slot->id() == format::ShardId{});

  format::ShardId next = id;
  next.at.step = Step{8};
  slot->begin_fill(next);
  slot->filled();
  slot->seal(record(next, 4 * KiB));
  REQUIRE(slot->digest() == format::digest_of(*slot->record()));
  REQUIRE_FALSE(slot->digest() == first);
  {
    const Lease reader(slot);  // The end of a reader frees only what is to be freed.
  }
  REQUIRE(slot->state() == Slot::State::sealed);
}

TEST_CASE_METHOD(SlotFixture, "slot: a Lease shows its shard, and no byte behind it",
                 "[unit][arena]") {
  seal();
  const Lease lease(slot);
  REQUIRE(lease.bytes().size() == 4 * KiB);
  REQUIRE(lease.file_spans({0, 4 * KiB}).size() == 1);
  REQUIRE_TRIPS(lease.file_spans({1, 4 * KiB}));
}

TEST_CASE_METHOD(SlotFixture, "slot: a Lease that was moved from ends nothing", "[unit][arena]") {
  seal();
  Lease first(slot);
  {
    Lease second(std::move(first));
    slot->retire();
    first.reset();
    REQUIRE(slot->state() == Slot::State::sealed);
    REQUIRE(second.bytes().size() == 4 * KiB);
  }
  REQUIRE(slot->state() == Slot::State::free);
}

TEST_CASE_METHOD(SlotFixture, "slot: a Lease keeps the Slot when its owner is gone",
                 "[unit][arena]") {
  seal();
  const Lease lease(slot);
  slot.reset();
  REQUIRE(lease.bytes().size() == 4 * KiB);
  REQUIRE(lease.record().id == id);
}

TEST_CASE("budget: a request that does not fit is refused with the numbers", "[unit][arena]") {
  arena::MemoryBudget budget(10 * GiB);
  REQUIRE(budget.reserve(4 * GiB, "Slots of job a").has_value());
  const Status refused = budget.reserve(8 * GiB, "Slots of job b");
  REQUIRE_FALSE(refused.has_value());
  REQUIRE(refused.error().code() == Errc::exhausted);
  REQUIRE(refused.error().text().find("Slots of job b need 8.0 GiB, may use 10.0 GiB, of which "
                                      "4.0 GiB are taken") == 0);
  budget.release(4 * GiB);
  REQUIRE(budget.reserve(8 * GiB, "Slots of job b").has_value());
  REQUIRE_FALSE(budget.reserve(~std::uint64_t{0}, "an overflow").has_value());
}

TEST_CASE("budget: its last byte may be had, and what is given back counts", "[unit][arena]") {
  arena::MemoryBudget budget(10 * GiB);
  REQUIRE(budget.reserve(10 * GiB, "all of it").has_value());
  REQUIRE_FALSE(budget.reserve(1, "one byte more").has_value());
  // Larger Slots in the place of those that are there.
  REQUIRE(budget.check(4 * GiB, "in their place", 4 * GiB).has_value());
  REQUIRE_FALSE(budget.check(4 * GiB + 1, "in their place", 4 * GiB).has_value());
  REQUIRE_TRIPS(budget.release(10 * GiB + 1));
  budget.release(10 * GiB);
  REQUIRE(budget.reserve(10 * GiB, "all of it, again").has_value());
}
