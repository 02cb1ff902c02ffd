// Goal:   a tool reads exactly the bytes of one step out of a job's memory, its own node's and that
//         of others, for as long as training does not need that memory; it never costs a save.
// Method: one rank, or ranks on several nodes, capture steps; a LentStep is read between and after
//         the commits that follow.
#include "node/lent_step.hpp"

#include "unit/node/one_rank.hpp"
#include "unit/node/worlds.hpp"

namespace ckpt::node {
namespace {

using test::small_chunk_bytes;
using test::small_chunks;

using Chunks = std::vector<std::vector<std::byte>>;
using Lent = std::shared_ptr<LentStep>;

constexpr std::uint64_t lent_bytes = 5 * small_chunk_bytes;

struct LendingRank {
  explicit LendingRank(std::uint32_t own_slots, std::string dir = {}) : disk(1) {
    disk.put_directory("/scratch");
    rank.emplace(disk, lent_bytes, small_chunks());
    rank->request.own_slots = own_slots;
    rank->request.dir = std::move(dir);
    REQUIRE(rank->begin_fresh());
  }
  void commit(std::uint64_t step) {
    rank->capture(Step{step});
    REQUIRE(rank->pass_until([&] { return rank->committed == Step{step}; }));
    REQUIRE(rank->pass_until([&] { return !rank->granted.empty(); }));
  }
  template <class T>
  Result<T> run(Task<T> task) {
    auto pending = test::start(rank->context, std::move(task));
    return test::finish(rank->clock, pending);
  }
  // All Chunks of the only rank, one behind the other.
  Result<std::vector<std::byte>> read(const Lent& lent) {
    CKPT_TRY(const auto record, run(lent->record(0)));
    std::vector<std::byte> all;
    for (std::size_t index = 0; index < record->chunk_crcs.size(); ++index) {
      CKPT_TRY(const Chunks chunk, run(lent->read(0, {index})));
      all.insert(all.end(), chunk.at(0).begin(), chunk.at(0).end());
    }
    return all;
  }
  void check_is(const Lent& lent, std::uint64_t step) {
    const auto bytes = read(lent);
    REQUIRE((bytes ? "" : bytes.error().message()) == "");
    std::vector<std::byte> expected(lent_bytes);
    test::OneRank::fill(expected, Step{step});
    const std::uint64_t offset = rank->layout.tensors.at(0).extent.offset;
    CHECK(std::ranges::equal(std::span(*bytes).subspan(offset, lent_bytes), expected));
  }

  test::MemoryDisk disk;
  std::optional<test::OneRank> rank;
};

}  // namespace

TEST_CASE("lent step: the newest step is read as it was captured", "[unit][node]") {
  LendingRank scene(3);
  scene.commit(1);
  scene.commit(2);
  const auto lent = scene.rank->engine->lend("job", std::nullopt);
  REQUIRE(lent);
  const auto description = (*lent)->description();
  CHECK(description.at.step == Step{2});
  CHECK(description.digests.size() == 1);
  CHECK(description.nodes == std::vector<std::string>{"A"});
  scene.check_is(*lent, 2);
  const auto two = scene.run((*lent)->read(0, {1, 3}));
  REQUIRE(two);
  CHECK(two->size() == 2);
}

TEST_CASE("lent step: it stays as it is while training has two Slots more", "[unit][node]") {
  LendingRank scene(3);
  scene.commit(1);
  const auto lent = scene.rank->engine->lend("job", Step{1});
  REQUIRE(lent);
  for (const std::uint64_t step : {2, 3, 4}) {
    scene.commit(step);
    scene.check_is(*lent, 1);
  }
}

TEST_CASE("lent step: training takes back what it needs, and the reader is told", "[unit][node]") {
  LendingRank scene(2);
  scene.commit(1);
  const auto lent = scene.rank->engine->lend("job", std::nullopt);
  REQUIRE(lent);
  scene.check_is(*lent, 1);
  scene.commit(2);  // Its test is that a Slot is granted afterwards.
  scene.commit(3);
  const auto read = scene.read(*lent);
  REQUIRE_FALSE(read);
  CHECK(read.error().code() == Errc::unavailable);
  CAPTURE(read.error().message());
  CHECK(read.error().message().find("training has committed step 3 meanwhile") !=
        std::string::npos);
}

TEST_CASE("lent step: what a reader let go of is free at once", "[unit][node]") {
  LendingRank scene(3);
  scene.commit(1);
  {
    const auto lent = scene.rank->engine->lend("job", std::nullopt);
    REQUIRE(lent);
    scene.commit(2);
  }
  scene.commit(3);
  REQUIRE(scene.rank->pass_until([&] { return scene.rank->granted.size() == 2; }));
}

TEST_CASE("lent step: a step that is stored is read from there when memory has it no more",
          "[unit][node]") {
  LendingRank scene(2, "/scratch/job");
  scene.rank->request.save_storage_interval.steps = 1;
  scene.commit(1);
  const auto lent = scene.rank->engine->lend("job", std::nullopt);
  REQUIRE(lent);
  REQUIRE(scene.rank->engine->call(scene.rank->session, test::control::Flush{Step{1}}));
  REQUIRE(scene.rank->pass_until([&] { return scene.rank->durable == Step{1}; }));
  for (const std::uint64_t step : {2, 3, 4}) scene.commit(step);
  scene.check_is(*lent, 1);
}

TEST_CASE("lent step: a job that is dropped gets all of its memory back", "[unit][node]") {
  LendingRank scene(3);
  scene.commit(1);
  const auto lent = scene.rank->engine->lend("job", std::nullopt);
  REQUIRE(lent);
  scene.rank->engine->detach(scene.rank->session);
  REQUIRE(scene.rank->engine->drop("job"));
  CHECK(scene.rank->engine->status_json().find("\"used_bytes\": 0") != std::string::npos);
  const auto read = scene.read(*lent);
  REQUIRE_FALSE(read);
  CHECK(read.error().code() == Errc::unavailable);
  CHECK(read.error().text().find("has ended or was dropped") != std::string::npos);
}

TEST_CASE("lent step: a damaged copy is not given out", "[unit][node]") {
  LendingRank scene(3);
  scene.commit(1);
  const auto lent = scene.rank->engine->lend("job", std::nullopt);
  REQUIRE(lent);
  scene.rank->tensor_in(scene.rank->filling)[2 * small_chunk_bytes] ^= std::byte{1};
  const auto read = scene.read(*lent);
  REQUIRE_FALSE(read);
  CHECK(read.error().code() == Errc::corruption);
}

TEST_CASE("lent step: what is damaged in memory is read from storage", "[unit][node]") {
  LendingRank scene(3, "/scratch/job");
  scene.rank->request.save_storage_interval.steps = 1;
  scene.commit(1);
  const auto lent = scene.rank->engine->lend("job", std::nullopt);
  REQUIRE(lent);
  REQUIRE(scene.rank->engine->call(scene.rank->session, test::control::Flush{Step{1}}));
  REQUIRE(scene.rank->pass_until([&] { return scene.rank->durable == Step{1}; }));
  scene.rank->tensor_in(scene.rank->filling)[2 * small_chunk_bytes] ^= std::byte{1};
  scene.check_is(*lent, 1);
}

TEST_CASE("lent step: what is not there is refused in words", "[unit][node]") {
  LendingRank scene(3);
  const auto none_yet = scene.rank->engine->lend("job", std::nullopt);
  REQUIRE_FALSE(none_yet);
  CHECK(none_yet.error().code() == Errc::not_found);
  scene.commit(1);
  const auto other_job = scene.rank->engine->lend("another", std::nullopt);
  REQUIRE_FALSE(other_job);
  CHECK(other_job.error().text().find("holds nothing of it") != std::string::npos);
  const auto other_step = scene.rank->engine->lend("job", Step{7});
  REQUIRE_FALSE(other_step);
  CHECK(other_step.error().text().find("step 7") != std::string::npos);
  const auto lent = scene.rank->engine->lend("job", Step{1});
  REQUIRE(lent);
  CHECK(scene.run((*lent)->record(1)).error().code() == Errc::invalid_argument);
  CHECK(scene.run((*lent)->read(0, {999})).error().code() == Errc::invalid_argument);
  CHECK(scene.run((*lent)->read(0, {3, 1})).error().code() == Errc::invalid_argument);
}

TEST_CASE("lent step: shards of other nodes are read from their memory", "[unit][node]") {
  test::Cluster cluster;
  cluster.begin("ABC");
  cluster.commit(Step{5});
  const auto lent = cluster.engine("A").lend("job", std::nullopt);
  REQUIRE((lent ? "" : lent.error().message()) == "");
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto record = cluster.run((*lent)->record(rank));
    REQUIRE(record);
    CHECK((*record)->id == format::ShardId{(*lent)->description().at, rank});
    for (std::size_t index = 0; index < (*record)->chunk_crcs.size(); ++index) {
      const auto chunk = cluster.run((*lent)->read(rank, {index}));
      REQUIRE((chunk ? "" : chunk.error().message()) == "");
      CHECK(crc32(chunk->at(0)) == (*record)->chunk_crcs[index]);
    }
  }
}

TEST_CASE("lent step: a node that does not know all copies names the one that does",
          "[unit][node]") {
  test::Cluster cluster;
  test::Rules rules;
  rules.replicas = 1;
  cluster.begin("AB", rules);
  cluster.commit(Step{5});
  const auto lent = cluster.engine("B").lend("job", std::nullopt);
  REQUIRE_FALSE(lent);
  CHECK(lent.error().code() == Errc::unavailable);
  CAPTURE(lent.error().text());
  CHECK(lent.error().text().find("rank 0; node A knows all copies") != std::string::npos);
}

}  // namespace ckpt::node
