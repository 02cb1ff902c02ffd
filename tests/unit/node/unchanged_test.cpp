// Goal:   with skip_unchanged a step's copies cost the peers what has changed, and hold what was
//         captured; whatever happens to the earlier step at either end, no wrong byte is served and
//         every step is committed.
// Method: engines of two nodes on a simulated network, whose ranks change the last fifteenth of
//         their numbers.
//         Then one node is lost, and what the other has is restored and compared.
#include <catch2/catch.hpp>

#include "node/copy_base.hpp"
#include "support/heap_memory.hpp"
#include "unit/node/worlds.hpp"

namespace ckpt::node {

using test::Cluster;
using test::frozen;
using test::Rules;
using test::shard_bytes;

namespace {

std::uint64_t sent(Cluster& cluster, const char* what) {
  return cluster.status("A").at("copies_sent").at(what);
}

}  // namespace

TEST_CASE("unchanged: a step costs the peer what has changed", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", frozen());
  cluster.commit(Step{5});
  CHECK(sent(cluster, "bytes") == shard_bytes);
  CHECK(sent(cluster, "bytes_unchanged") == 0);
  for (const std::uint64_t step : {6, 7, 8}) cluster.commit(Step{step});
  CHECK(sent(cluster, "bytes") == shard_bytes + 3 * 4 * KiB);
  CHECK(sent(cluster, "bytes_unchanged") == 3 * (shard_bytes - 4 * KiB));
  cluster.lose("A");
  cluster.begin("BB", frozen());
  cluster.check_restored(Step{8}, 2);
}

TEST_CASE("unchanged: without the option every Chunk is sent", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", frozen(false));
  cluster.commit(Step{5});
  cluster.commit(Step{6});
  CHECK(sent(cluster, "bytes") == 2 * shard_bytes);
  CHECK(sent(cluster, "bytes_unchanged") == 0);
}

TEST_CASE(
    "unchanged: a copy of the step before that is damaged serves nobody, and the next step "
    "is committed",
    "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", frozen());
  cluster.commit(Step{5});
  SECTION("at the peer") {
    cluster.damage_replicas(0);
  }
  SECTION("at the rank's own node") {
    cluster.damage(0);
  }
  cluster.commit(Step{6});
  cluster.commit(Step{7});
  cluster.lose("A");
  cluster.begin("BB", frozen());
  cluster.check_restored(Step{7}, 2);
}

TEST_CASE("unchanged: after a restore the first step is sent as a whole", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", frozen());
  cluster.commit(Step{5});
  cluster.commit(Step{6});
  const std::uint64_t before = sent(cluster, "bytes_unchanged");
  cluster.begin("AB", frozen());
  cluster.check_restored(Step{6}, 2);
  cluster.commit(Step{7});
  CHECK(sent(cluster, "bytes_unchanged") == before);
  cluster.commit(Step{8});
  CHECK(sent(cluster, "bytes_unchanged") > before);
  cluster.lose("A");
  cluster.begin("BB", frozen());
  cluster.check_restored(Step{8}, 2);
}

TEST_CASE("unchanged: a peer that was started again gets all", "[unit][node]") {
  Cluster cluster;
  cluster.begin("AB", frozen());
  cluster.commit(Step{5});
  cluster.commit(Step{6});
  cluster.lose("B");
  cluster.begin("AB", frozen());
  cluster.check_restored(Step{6}, 2);
  cluster.commit(Step{7});
  cluster.lose("A");
  cluster.begin("BB", frozen());
  cluster.check_restored(Step{7}, 2);
}

TEST_CASE("unchanged: only an earlier step of the same rank, timeline and tensors is a base",
          "[unit][node]") {
  format::ShardRecord record;
  record.job = "job";
  record.id = {{2, Step{7}}, 3};
  record.model = {1, 2};
  format::ShardRecord earlier = record;
  earlier.id.at.step = Step{5};
  CHECK(is_base(earlier, record));
  SECTION("the same step") {
    earlier.id.at.step = Step{7};
  }
  SECTION("a later step") {
    earlier.id.at.step = Step{8};
  }
  SECTION("another timeline") {
    earlier.id.at.timeline = 1;
  }
  SECTION("another rank") {
    earlier.id.rank = 2;
  }
  SECTION("other tensors") {
    earlier.model = {1, 3};
  }
  SECTION("another run") {
    earlier.run = {9, 9};
  }
  SECTION("another job") {
    earlier.job = "other";
  }
  CHECK_FALSE(is_base(earlier, record));
}

TEST_CASE("unchanged: a base keeps its Slot until it is let go", "[unit][node]") {
  auto slot = std::make_shared<arena::Slot>(std::make_unique<test::HeapMemory>(8 * KiB));
  auto record = std::make_shared<format::ShardRecord>();
  record->bytes = 8 * KiB;
  record->chunk_bytes = 4 * KiB;
  slot->begin_fill(record->id);
  slot->filled();
  slot->seal(record);
  {
    const replicate::SealedShard source = source_of(slot);
    slot->retire();
    CHECK(slot->state() == arena::Slot::State::sealed);
    CHECK(slot->is_leased());
  }
  CHECK(slot->state() == arena::Slot::State::free);
}

}  // namespace ckpt::node
