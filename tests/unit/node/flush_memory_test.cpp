// Goal:   with skip_unchanged a save writes what has changed since the last stored step and shares
//         the rest, and every stored step holds what was captured; a daemon that knows nothing of
//         that step, or storage that cannot share, writes everything.
// Method: engines of two nodes whose ranks change the last fifteenth of their numbers. Then all
//         memory is lost, and the newest step is restored from storage and compared.
#include "node/flush_memory.hpp"

#include <catch2/catch.hpp>
#include <cerrno>

#include "storage/member_writer.hpp"
#include "support/checkpoint_maker.hpp"
#include "unit/node/worlds.hpp"

namespace ckpt::node {

using test::Cluster;
using test::Rules;
using test::shard_bytes;

namespace {

constexpr std::uint64_t frozen_bytes = 15 * 4 * KiB;

Rules frozen_on_storage() {
  Rules rules = test::frozen();
  rules.directory = "/scratch";
  return rules;
}

std::uint64_t flushed(Cluster& cluster, const char* what, const std::string& node = "A") {
  return cluster.status(node).at("flushed").at(what);
}

void check_stored(Cluster& cluster, Step step) {
  cluster.lose("A");
  cluster.lose("B");
  cluster.begin("AB", frozen_on_storage());
  cluster.check_restored(step, 2);
  CHECK(cluster.rank(0).offer->source == RestoreSource::storage);
}

}  // namespace

TEST_CASE("flush memory: a save writes what has changed, for each rank", "[unit][node]") {
  Cluster cluster;
  Rules rules = frozen_on_storage();
  rules.max_ckpt_num = 1;
  cluster.begin("AB", rules);
  cluster.store(Step{5});
  CHECK(flushed(cluster, "bytes") == shard_bytes);
  CHECK(flushed(cluster, "bytes_shared") == 0);
  for (const std::uint64_t step : {6, 7, 8}) cluster.store(Step{step});
  for (const char* node : {"A", "B"}) {
    CHECK(flushed(cluster, "bytes_shared", node) == 3 * frozen_bytes);
    CHECK(flushed(cluster, "bytes", node) == 4 * shard_bytes - 3 * frozen_bytes);
  }
  CHECK_FALSE(cluster.disk().exists("/scratch/step-000000007"));
  check_stored(cluster, Step{8});
}

TEST_CASE("flush memory: two ranks of a node do not share with each other", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AAB", frozen_on_storage());
  cluster.store(Step{5});
  cluster.store(Step{6});
  CHECK(flushed(cluster, "bytes_shared") > 0);
  cluster.lose("A");
  cluster.lose("B");
  cluster.begin("AAB", frozen_on_storage());
  cluster.check_restored(Step{6}, 3);
}

TEST_CASE("flush memory: without the option everything is written", "[unit][node]") {
  Cluster cluster;
  Rules rules = frozen_on_storage();
  rules.skips_unchanged = false;
  cluster.begin("AB", rules);
  cluster.store(Step{5});
  cluster.store(Step{6});
  CHECK(flushed(cluster, "bytes") == 2 * shard_bytes);
  CHECK(flushed(cluster, "bytes_shared") == 0);
}

TEST_CASE("flush memory: a daemon that was started again, and another timeline, write everything",
          "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", frozen_on_storage());
  cluster.store(Step{5});
  std::uint64_t before = 0;
  SECTION("another daemon") {
    cluster.lose("A");
    cluster.lose("B");
  }
  SECTION("another timeline") {
    before = flushed(cluster, "bytes");
  }
  cluster.begin("AB", frozen_on_storage());
  cluster.check_restored(Step{5}, 2);
  cluster.store(Step{6});
  CHECK(flushed(cluster, "bytes") == before + shard_bytes);
  CHECK(flushed(cluster, "bytes_shared") == 0);
  cluster.store(Step{7});
  CHECK(flushed(cluster, "bytes_shared") == frozen_bytes);
  check_stored(cluster, Step{7});
}

TEST_CASE("flush memory: storage that cannot share is asked once", "[unit][node]") {
  Cluster cluster;
  std::uint64_t asked = 0;
  cluster.disk().set_hook([&](std::string_view verb, const std::string&) {
    return verb == "clone" && ++asked > 0 ? EOPNOTSUPP : 0;
  });
  cluster.begin("AB", frozen_on_storage());
  for (const std::uint64_t step : {5, 6}) cluster.store(Step{step});
  const std::uint64_t asked_once = asked;
  CHECK(asked_once > 0);
  for (const std::uint64_t step : {7, 8}) cluster.store(Step{step});
  CHECK(asked == asked_once);
  CHECK(flushed(cluster, "bytes") == 4 * shard_bytes);
  check_stored(cluster, Step{8});
}

TEST_CASE("flush memory: a step that somebody has removed is asked for, and the next one shares",
          "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", frozen_on_storage());
  cluster.store(Step{5});
  cluster.disk().erase("/scratch/step-000000005");
  cluster.store(Step{6});
  CHECK(flushed(cluster, "bytes_shared") == 0);
  cluster.store(Step{7});
  CHECK(flushed(cluster, "bytes_shared") == frozen_bytes);
  check_stored(cluster, Step{7});
}

TEST_CASE("flush memory: files that were damaged, and healed, share nothing with the next save",
          "[unit][node]") {
  Cluster cluster;
  Rules rules = frozen_on_storage();
  rules.verify_every = std::chrono::seconds(20);
  cluster.begin("AB", rules);
  cluster.store(Step{5});
  cluster.rot("/scratch/step-000000005/rank-00000.safetensors");
  REQUIRE(cluster.pass_until([&] { return cluster.status("A").at("healed").at("files") == 1; }));
  cluster.store(Step{6});
  CHECK(flushed(cluster, "bytes_shared") == 0);
  check_stored(cluster, Step{6});
}

TEST_CASE("flush memory: damage that was healed does not come back from the step before",
          "[unit][node]") {
  Cluster cluster;
  Rules rules = frozen_on_storage();
  rules.verify_every = std::chrono::seconds(20);
  cluster.begin("AB", rules);
  cluster.store(Step{5});
  cluster.store(Step{6});
  const std::uint64_t shared = flushed(cluster, "bytes_shared");
  CHECK(shared == frozen_bytes);
  cluster.rot("/scratch/step-000000006/rank-00000.safetensors");
  REQUIRE(cluster.pass_until([&] { return cluster.status("A").at("healed").at("files") == 1; }));
  cluster.store(Step{7});
  CHECK(flushed(cluster, "bytes_shared") == shared);
  check_stored(cluster, Step{7});
}

TEST_CASE("flush memory: nothing is shared with a step that is known to be damaged",
          "[unit][node]") {
  asio::io_context context;
  test::FakeClock clock(context);
  test::MemoryDisk disk;
  for (const char* name : {"/job/step-000000003", "/job/step-000000004"}) disk.put_directory(name);
  test::MemoryFileSystem files(disk);
  const storage::Site site(files, clock, "/job");
  const auto run = [&](auto task) {
    auto pending = test::start(context, std::move(task));
    return test::finish(clock, pending);
  };
  const std::string job = "job";
  FlushMemory memory(job);
  test::ShardWish wish;
  wish.at.step = Step{3};
  std::vector<test::MadeShard> made;  // Their bytes are read until the end.
  const auto write = [&](const std::set<format::Damage>& damaged) {
    const test::MadeShard& shard = made.emplace_back(test::make_shard(wish));
    storage::ShardToWrite source{shard.record, shard.slot()};
    source.sharing = memory.begin(site, shard.record->id, damaged);
    return source;
  };
  CHECK(write({}).sharing == nullptr);  // The option is off.
  memory.set_enabled(true);
  const storage::ShardToWrite first = write({});
  REQUIRE(first.sharing != nullptr);
  REQUIRE(run(storage::write_shard(files, first, site.at("step-000000003"), {})));
  memory.keep(first.record->id, *first.sharing);

  wish.at.step = Step{4};
  const auto has_base = [&](const std::set<format::Damage>& damaged) {
    const storage::ShardToWrite next = write(damaged);
    REQUIRE(run(next.sharing->begin(files, next.record)));
    return next.sharing->has_base();
  };
  CHECK(has_base({}));
  CHECK(has_base({{{first.record->id.at, 1}, Errc::corruption}}));
  SECTION("damage of the rank") {
    CHECK_FALSE(has_base({{first.record->id, Errc::corruption}}));
  }
  SECTION("the option was off meanwhile") {
    memory.set_enabled(false);
    memory.set_enabled(true);
  }
  SECTION("damage that was found and mended") {
    memory.forget(first.record->id.rank);
  }
  SECTION("damage that was found and mended while the next one was written") {
    const storage::ShardToWrite next = write({});
    REQUIRE(run(storage::write_shard(files, next, site.at("step-000000004"), {})));
    memory.forget(first.record->id.rank);
    memory.keep(next.record->id, *next.sharing);
    wish.at.step = Step{5};
  }
  CHECK_FALSE(has_base({}));
}

}  // namespace ckpt::node
