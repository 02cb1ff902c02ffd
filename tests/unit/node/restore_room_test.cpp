// Goal:   a restore finds room: a copy that was put aside gives its Slot when no other has room and
//         none can be made, and not before.
// Method: the Slots of one rank, which hold the step that is restored, so that none may be taken;
//         a budget that is used up, or has room for one more.
#include "node/restore_room.hpp"

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include "base/random.hpp"
#include "base/units.hpp"
#include "support/captured_log.hpp"
#include "support/heap_memory.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"
#include "support/sim_network.hpp"
#include "unit/node/rank.hpp"

namespace ckpt::node {
namespace {

constexpr std::uint64_t slot_bytes = 2 * page_bytes;

struct Life final : JobLife {
  explicit Life(Clock& clock) : signal(clock) {}
  void touch() override { signal.notify_all(); }
  Signal& changed() override { return signal; }
  std::shared_ptr<void> hold() override { return std::make_shared<int>(0); }
  WorkPass begin_work() override { return {hold(), gate.enter()}; }

  Signal signal;
  StopGate gate;
};

struct Room {
  explicit Room(std::uint64_t budget)
      : engine{context.get_executor(), Seams{clock, memory, files, *front}, EngineOptions(),
               arena::MemoryBudget(budget), Random(1)} {
    REQUIRE(run(slots.make_own(0, 2, slot_bytes, [] {})));
    for (OwnSlot& own : slots.own(0).slots) {
      own.slot->begin_fill(record->id);
      own.slot->filled();
      own.slot->seal(record);
    }
    auto session = std::make_unique<Session>();
    session->id = SessionId{7};
    session->events = &trainer;
    session->slots_sent = true;
    ranks[0].session = std::move(session);
    slots.keep_damaged(true);
    slots.quarantine(arena::Lease(slots.own(0).slots[1].slot));
  }
  template <class T>
  Result<T> run(Task<T> task) {
    return test::finish(clock, test::start(context, std::move(task)));
  }
  static std::shared_ptr<const format::ShardRecord> some_record() {
    const format::TensorSpec weight{"weight", DType::u8, {100}, "", ""};
    format::ShardRecord record;
    record.id = {{1, Step{5}}, 0};
    record.world_size = 1;
    record.layout = format::make_layout(std::span(&weight, 1), 0, 1).value();
    record.bytes = format::covered_bytes(record.layout, 0);
    record.chunk_bytes = page_bytes;
    record.chunk_crcs.assign(div_ceil(record.bytes, page_bytes), 0);
    return std::make_shared<const format::ShardRecord>(std::move(record));
  }
  std::size_t kept() const {
    return slots.find_damaged(record->id, format::digest_of(*record)).size();
  }

  const test::CapturedLog quiet{LogLevel::error};
  const std::shared_ptr<const format::ShardRecord> record = some_record();
  asio::io_context context;
  test::FakeClock clock{context};
  test::HeapSource memory;
  test::MemoryDisk disk{1};
  test::MemoryFileSystem files{disk, &clock};
  test::SimNetwork network{1};
  std::unique_ptr<wire::Network> front = network.add_node("A", clock);
  EngineContext engine;
  JobFacts facts{engine, 1};
  Life life{clock};
  Ranks ranks;
  test::Rank trainer;
  SlotTable slots{engine, "job"};
  RestoreRoom room{facts, life, ranks, slots};
};

}  // namespace

TEST_CASE("restore room: a copy that was put aside gives its Slot, where no other is free",
          "[unit][node]") {
  Room it(2 * slot_bytes);
  const auto taken = it.room.take(it.record->id, it.record->bytes);
  REQUIRE(taken);
  CHECK(*taken == it.slots.own(0).slots[1].slot);
  CHECK(it.kept() == 0);
  const auto next = it.room.take(it.record->id, it.record->bytes);
  REQUIRE_FALSE(next);
  CHECK(next.error().code() == Errc::unavailable);
  (*taken)->abandon();
}

TEST_CASE("restore room: memory is made before such a copy goes, if there is some",
          "[unit][node]") {
  const bool has_memory = GENERATE(true, false);
  Room it((has_memory ? 3 : 2) * slot_bytes);
  auto waiting = test::start(it.context, it.room.wait(it.record->id, SessionId{7}, 100));
  it.clock.poll();
  it.ranks[0].session->slots_sent = true;  // The trainer has mapped them.
  it.life.touch();
  const Status waited = test::finish(it.clock, std::move(waiting));
  REQUIRE((waited ? "" : waited.error().message()) == "");
  CHECK(it.kept() == (has_memory ? 1 : 0));
  CHECK(it.slots.own(0).slots.size() == (has_memory ? 3 : 2));
  CHECK_FALSE(it.ranks[0].slots_failure);
}

}  // namespace ckpt::node
