// Goal:   a copy that was found damaged is put aside, and no other copy of the shard with it.
// Method: a table with two copies of one shard, and readers that hold Leases of the same one.
#include "node/slot_table.hpp"

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include "base/random.hpp"
#include "base/units.hpp"
#include "support/captured_log.hpp"
#include "support/fake_clock.hpp"
#include "support/heap_memory.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"

namespace ckpt::node {
namespace {

std::shared_ptr<const format::ShardRecord> record_of_one_page() {
  const format::TensorSpec weight{"weight", DType::u8, {100}, "", ""};
  format::ShardRecord record;
  record.job = "job";
  record.id = {{1, Step{5}}, 0};
  record.world_size = 1;
  record.layout = format::make_layout(std::span(&weight, 1), 0, 1).value();
  record.bytes = format::covered_bytes(record.layout, 0);
  record.chunk_bytes = 4 * KiB;
  record.chunk_crcs.assign(div_ceil(record.bytes, record.chunk_bytes), 0);
  return std::make_shared<const format::ShardRecord>(std::move(record));
}

struct TwoCopies {
  explicit TwoCopies(std::uint64_t budget = 1 * MiB)
      : engine(context.get_executor(), Seams{clock, memory, files, *front}, EngineOptions(),
               arena::MemoryBudget(budget), Random(1)) {
    (void)slots.take_replica(*record, [] {});  // Makes two.
    context.run();
    for (auto* copy : {&first, &second}) {
      *copy = slots.take_replica(*record, [] {}).value();
      (*copy)->begin_fill(record->id);
      (*copy)->filled();
      (*copy)->seal(record);
    }
  }
  std::size_t readable() const {
    std::size_t count = 0;
    slots.for_each_sealed([&](arena::Slot&, bool) { ++count; });
    return count;
  }

  const test::CapturedLog quiet{LogLevel::error};
  asio::io_context context;
  test::FakeClock clock{context};
  test::HeapSource memory;
  test::MemoryDisk disk{1};
  test::MemoryFileSystem files{disk, &clock};
  test::SimNetwork network{1};
  std::unique_ptr<wire::Network> front = network.add_node("A", clock);
  EngineContext engine;
  std::shared_ptr<const format::ShardRecord> record = record_of_one_page();
  SlotTable slots{engine, "job"};
  std::shared_ptr<arena::Slot> first, second;
};

}  // namespace

TEST_CASE_METHOD(TwoCopies, "slot table: two readers of a damaged copy leave the other one alone",
                 "[unit][node]") {
  const std::shared_ptr<arena::Slot> damaged = slots.find(record->id, first->digest());
  const std::shared_ptr<arena::Slot> good = damaged == first ? second : first;
  const arena::Lease one(damaged);
  const arena::Lease other(damaged);
  slots.quarantine(one);
  CHECK(damaged->state() == arena::Slot::State::quarantined);
  CHECK(slots.find(record->id, good->digest()) == good);
  slots.quarantine(other);
  CHECK(slots.find(record->id, good->digest()) == good);
  CHECK(slots.take_quarantined().size() == 1);
}

TEST_CASE_METHOD(TwoCopies,
                 "slot table: the copy that was read is put aside, and not the first one",
                 "[unit][node]") {
  const std::shared_ptr<arena::Slot> good = slots.find(record->id, first->digest());
  const std::shared_ptr<arena::Slot> damaged = good == first ? second : first;
  slots.quarantine(arena::Lease(damaged));
  CHECK(slots.find(record->id, good->digest()) == good);
  CHECK(readable() == 1);
  CHECK(damaged->state() == arena::Slot::State::free);
}

TEST_CASE_METHOD(TwoCopies, "slot table: a copy that is being freed is not put aside as well",
                 "[unit][node]") {
  const arena::Lease reader(first);
  slots.retire_if([](const format::ShardId&) { return true; });
  slots.quarantine(reader);
  CHECK(slots.take_quarantined().empty());
  CHECK(readable() == 0);
}

TEST_CASE_METHOD(TwoCopies, "slot table: a damaged copy is kept for a restore, and counts nowhere",
                 "[unit][node]") {
  CHECK_FALSE(slots.keep_damaged(true));
  slots.quarantine(arena::Lease(first));
  const Digest digest = format::digest_of(*record);
  CHECK(readable() == 1);
  CHECK(slots.find(record->id, digest) == second);
  REQUIRE(slots.find_damaged(record->id, digest).size() == 1);
  CHECK(&slots.find_damaged(record->id, digest).front()->slot() == first.get());
  CHECK(slots.find_damaged(record->id, Digest()).empty());
  CHECK(slots.find_damaged({record->id.at, 1}, digest).empty());
  CHECK(slots.take_quarantined().size() == 1);  // It is healed all the same.
  SECTION("until the restore is over") {
    CHECK(slots.keep_damaged(false));
    CHECK_FALSE(slots.keep_damaged(false));
  }
  SECTION("or its rank needs the memory") {
    CHECK_FALSE(slots.let_go_damaged(1));
    CHECK(slots.let_go_damaged(0));
  }
  SECTION("or the job's memory is freed") {
    slots.free_all();
  }
  CHECK(first->state() == arena::Slot::State::free);
  CHECK(slots.find_damaged(record->id, digest).empty());
}

TEST_CASE("slot table: damaged copies give way to Slots of ranks, and to no others",
          "[unit][node]") {
  const std::uint64_t each = align_up(record_of_one_page()->bytes, page_bytes);
  TwoCopies copies(4 * each);
  SlotTable& slots = copies.slots;
  const auto make_own = [&](std::uint32_t rank) {
    return test::finish(copies.clock,
                        test::start(copies.context, slots.make_own(rank, 2, each, [] {})));
  };
  REQUIRE(make_own(0));
  const std::shared_ptr<arena::Slot> own = slots.own(0).slots[0].slot;
  own->begin_fill(copies.record->id);
  own->filled();
  own->seal(copies.record);
  slots.keep_damaged(true);
  slots.quarantine(arena::Lease(own));
  slots.let_go_own(0);  // The other Slot goes, and there is room for one.
  const auto kept = [&] { return slots.find_damaged(copies.record->id, own->digest()).size(); };
  SECTION("those for captures") {
    REQUIRE(make_own(1));
    CHECK(own->state() == arena::Slot::State::free);
  }
  SECTION("that of a restore") {
    REQUIRE(test::finish(copies.clock,
                         test::start(copies.context, slots.make_for_restore(1, 2 * each))));
    CHECK(own->state() == arena::Slot::State::free);
  }
  SECTION("but not one for a healed copy") {
    format::ShardRecord other = *copies.record;
    other.id.rank = 1;
    for (int tries = 0; tries < 3; ++tries) {
      const auto slot = slots.take_for_healing(other, [] {});
      copies.context.restart();
      copies.context.run();
      if (tries == 2) CHECK(slot);  // In what is left.
    }
    CHECK(kept() == 1);
  }
}

}  // namespace ckpt::node
