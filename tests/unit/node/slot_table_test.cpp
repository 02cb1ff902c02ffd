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
  TwoCopies() {
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
  EngineContext engine{context.get_executor(), Seams{clock, memory, files, *front}, EngineOptions(),
                       arena::MemoryBudget(1 * MiB), Random(1)};
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

}  // namespace ckpt::node
