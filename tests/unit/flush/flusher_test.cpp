// Goal:   one attempt is written at a time and one waits, the newest of those that came; whatever
//         ends an attempt, nothing touches its Slot afterwards.
// Method: shards of several steps on a disk in memory whose operations take virtual time.
#include "flush/flusher.hpp"
#include "base/spawn.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "format/shard_part.hpp"
#include "storage/publish.hpp"
#include "storage/step_directory.hpp"
#include "support/checkpoint_maker.hpp"
#include "support/fake_clock.hpp"
#include "support/memory_file_system.hpp"
#include "support/pending.hpp"

namespace ckpt::test {

namespace {

class FlushFixture {
 public:
  FlushFixture() {
    disk.put_directory("/job");
    disk.set_latency(std::chrono::milliseconds(10), std::chrono::milliseconds(10));
  }
  // Asks for one shard of `step` to be written; how it ended is in `ended`.
  void ask(std::uint64_t step, std::uint32_t rank = 0) {
    ShardWish wish;
    wish.at.step = Step{step};
    wish.rank = rank;
    wish.world_size = 4;
    disk.put_directory(directory_of(step));
    run_detached(context.get_executor(), write(make_shard(wish), attempt_of(step), {step, rank}));
    clock.poll();
  }
  static std::string name_of(std::uint64_t step) {
    format::StepId at;
    at.step = Step{step};
    return storage::work_directory_name(at, step);
  }
  static std::string directory_of(std::uint64_t step) { return "/job/./" + name_of(step); }
  storage::StepAttempt attempt_of(std::uint64_t step) const { return {site, name_of(step)}; }
  std::string outcome(std::uint64_t step, std::uint32_t rank = 0) const {
    const auto found = ended.find({step, rank});
    return found == ended.end() ? "under way" : found->second;
  }
  bool has_part(std::uint64_t step, std::uint32_t rank = 0) const {
    return disk.exists(directory_of(step) + "/" + format::part_name(rank));
  }

  asio::io_context context;
  FakeClock clock{context};
  MemoryDisk disk;
  MemoryFileSystem files{disk, &clock};
  std::shared_ptr<Throttle> throttle = std::make_shared<Throttle>(clock);
  storage::Site site{files, clock, "/job"};
  flush::Flusher flusher{clock, {throttle, {}}};
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::string> ended;

 private:
  DetachedTask write(MadeShard shard, storage::StepAttempt attempt,
                     std::pair<std::uint64_t, std::uint32_t> key) {
    storage::ShardToWrite source{shard.record, shard.slot()};
    const auto done = co_await flusher.write_shard(source, attempt);
    ended[key] = done ? "written" : std::string(to_string(done.error().code()));
  }
};

}  // namespace

TEST_CASE_METHOD(FlushFixture, "flusher: ranks of one attempt are all written", "[unit][flush]") {
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u}) ask(1, rank);
  REQUIRE(flusher.status().writing == directory_of(1));
  clock.advance(std::chrono::seconds(10));
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u}) {
    REQUIRE(outcome(1, rank) == "written");
    REQUIRE(has_part(1, rank));
  }
  REQUIRE(flusher.status().shards_written == 4);
  REQUIRE(flusher.status().writing.empty());
}

TEST_CASE_METHOD(FlushFixture, "flusher: four ranks of an attempt are written at once",
                 "[unit][flush]") {
  throttle->set_rate(1);  // Each has opened its files, and waits.
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u, 4u}) ask(1, rank);
  ask(2);
  clock.advance(std::chrono::seconds(1));
  const auto has_begun = [&](std::uint64_t step, std::uint32_t rank) {
    const std::string file = fmt::format("/job/{}/rank-{:05}.", name_of(step), rank);
    const std::vector<std::string> tree = disk.tree();
    return std::ranges::any_of(tree, [&](const auto& path) { return path.starts_with(file); });
  };
  for (const std::uint32_t rank : {0u, 1u, 2u, 3u}) CHECK(has_begun(1, rank));
  CHECK_FALSE(has_begun(1, 4));
  CHECK_FALSE(has_begun(2, 0));
  throttle->set_rate(0);
  clock.advance(std::chrono::seconds(10));
  CHECK(outcome(1, 4) == "written");
  CHECK(outcome(2) == "written");
}

TEST_CASE_METHOD(FlushFixture, "flusher: bytes are written or shared, and counted as that",
                 "[unit][flush]") {
  ShardWish wish;
  wish.tensor_bytes = 80'000;
  std::shared_ptr<storage::ChunkSharing> sharing;
  std::uint64_t bytes = 0;
  for (const std::uint64_t step : {1, 2}) {
    wish.at.step = Step{step};
    MadeShard shard = make_shard(wish);
    wish.at.step = Step{};  // The tensors of both are the same.
    const MadeShard same = make_shard(wish);
    auto record = std::make_shared<format::ShardRecord>(*shard.record);
    std::memcpy(shard.bytes->data() + page_bytes, same.bytes->data() + page_bytes, 16 * page_bytes);
    checksum_chunks(*record, *shard.bytes);
    std::optional<storage::ChunkSharing::Earlier> earlier;
    if (sharing) earlier = {sharing->stored(), directory_of(1)};
    sharing = std::make_shared<storage::ChunkSharing>(std::move(earlier));
    storage::ShardToWrite source{record, shard.slot()};
    source.sharing = sharing;
    disk.put_directory(directory_of(step));
    auto pending = start(context, flusher.write_shard(source, attempt_of(step)));
    REQUIRE(finish(clock, pending));
    bytes += record->bytes;
  }
  CHECK(flusher.status().bytes_shared == 16 * page_bytes);
  CHECK(flusher.status().bytes_written == bytes - 16 * page_bytes);
}

TEST_CASE_METHOD(FlushFixture, "flusher: the newest step waits, those between are skipped",
                 "[unit][flush]") {
  for (const std::uint64_t step : {1, 2, 3, 5, 4}) ask(step);
  REQUIRE(outcome(1) == "under way");
  REQUIRE(outcome(2) == "cancelled");
  REQUIRE(outcome(3) == "cancelled");
  REQUIRE(outcome(4) == "cancelled");
  REQUIRE(outcome(5) == "under way");
  REQUIRE(flusher.status().waiting == directory_of(5));
  clock.advance(std::chrono::seconds(10));
  REQUIRE(outcome(1) == "written");
  REQUIRE(outcome(5) == "written");
  REQUIRE(flusher.status().shards_skipped == 3);
  ask(6);
  clock.advance(std::chrono::seconds(10));
  REQUIRE(outcome(6) == "written");
}

TEST_CASE_METHOD(FlushFixture, "flusher: a flush that is given up ends at the next Chunk",
                 "[unit][flush]") {
  ask(1);
  ask(2);
  clock.advance(std::chrono::milliseconds(15));
  flusher.give_up(attempt_of(1));
  clock.advance(std::chrono::seconds(10));
  REQUIRE(outcome(1) == "cancelled");
  REQUIRE_FALSE(has_part(1));
  REQUIRE(outcome(2) == "written");
}

TEST_CASE_METHOD(FlushFixture, "flusher: it keeps to its limit until that is lifted",
                 "[unit][flush]") {
  throttle->set_rate(page_bytes / 60);
  ask(1);
  clock.advance(std::chrono::seconds(150));  // Enough for three pages.
  REQUIRE(outcome(1) == "under way");
  REQUIRE_FALSE(has_part(1));
  throttle->set_rate(0);
  clock.advance(std::chrono::seconds(1));
  REQUIRE(outcome(1) == "written");
}

TEST_CASE_METHOD(FlushFixture, "flusher: a write that fails leaves the way free", "[unit][flush]") {
  MemoryDisk::Fault fault;
  disk.fail_at(3, fault);
  ask(1);
  ask(2);
  clock.advance(std::chrono::seconds(10));
  REQUIRE(outcome(1) == "i/o");
  REQUIRE(outcome(2) == "written");
  REQUIRE(flusher.status().failed == 1);
}

TEST_CASE_METHOD(FlushFixture, "flusher: stop waits for the disk, and no longer than its deadline",
                 "[unit][flush]") {
  std::string stopped;
  const auto stop = [](flush::Flusher& one, Time deadline, std::string& result) -> DetachedTask {
    const Status done = co_await one.stop(deadline);
    result = done ? "stopped" : std::string(to_string(done.error().code()));
  };
  ask(1);
  ask(2);
  SECTION("the disk answers") {
    run_detached(context.get_executor(),
                 stop(flusher, clock.after(std::chrono::seconds(5)), stopped));
    clock.advance(std::chrono::seconds(4));
    REQUIRE(stopped == "stopped");
    REQUIRE(outcome(1) == "cancelled");
    REQUIRE(outcome(2) == "cancelled");
  }
  SECTION("the disk hangs") {
    disk.stall_until(clock.after(std::chrono::hours(1)));
    clock.advance(std::chrono::seconds(1));
    run_detached(context.get_executor(),
                 stop(flusher, clock.after(std::chrono::seconds(5)), stopped));
    clock.advance(std::chrono::seconds(6));
    REQUIRE(stopped == "unavailable");
    REQUIRE(outcome(1) == "under way");
  }
  ask(3);
  REQUIRE(outcome(3) == "cancelled");
}

}  // namespace ckpt::test
