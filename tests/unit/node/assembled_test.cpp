// Goal:   copies of a shard that are damaged in different Chunks make one good shard: the newest
//         step is restored, with its bytes. Where a Chunk is good in no copy, an older step is, or
//         none; wrong bytes never.
// Method: a whole engine stores two steps of several Chunks. Then Chunks drawn from a seed rot in
//         the Slot and on storage, or in both places of the job, and a trainer that verifies what
//         it is offered, as the library does, restores.
#include <catch2/catch.hpp>
#include <set>

#include "support/captured_log.hpp"
#include "unit/node/one_rank.hpp"

namespace ckpt::node {
namespace {

using test::small_chunk_bytes;
using test::small_chunks;

constexpr std::size_t chunk_count = 9;  // The header's, and those of the tensor.
constexpr const char* member = "/step-000000002/rank-00000.safetensors";

struct FlippingTrainer : test::OneRank {
  explicit FlippingTrainer(test::MemoryDisk& used, const std::string& dir)
      : OneRank(used, (chunk_count - 1) * small_chunk_bytes, small_chunks()) {
    request.dir = dir;
    verifies_offers = true;
  }
  void flip(std::size_t chunk) {
    bytes_of(filling)[chunk * small_chunk_bytes + 11] ^= std::byte{4};
  }
  void restore_again() {
    answer.reset();
    REQUIRE(engine->call(session, control::AskRestore{1, std::nullopt}));
    REQUIRE(pass_until([this] { return answer.has_value(); }));
  }
};

// Two sets of Chunks, none in both if they are `apart`.
struct Damage {
  std::set<std::size_t> one, other;
};
Damage draw(std::uint64_t seed, bool are_apart) {
  Random random(seed);
  Damage damage;
  for (std::size_t chunk = 0; chunk < chunk_count; ++chunk) {
    const std::uint64_t drawn = random.next() % 3;
    if (drawn == 0) damage.one.insert(chunk);
    if (drawn == 1) damage.other.insert(chunk);
  }
  damage.one.insert(seed % chunk_count);
  damage.other.erase(seed % chunk_count);
  damage.other.insert((seed + 1) % chunk_count);
  damage.one.erase((seed + 1) % chunk_count);
  if (!are_apart) damage.other.insert(seed % chunk_count);
  return damage;
}

void rot(test::MemoryDisk& disk, const std::string& file, const std::set<std::size_t>& chunks) {
  for (const std::size_t chunk : chunks) disk.flip(file, chunk * small_chunk_bytes + 7, 3);
}

void check(const FlippingTrainer& trainer, bool are_apart) {
  CHECK_FALSE(trainer.is_wrong);
  const std::string error = trainer.answer->result ? "" : trainer.answer->result.error().message();
  CAPTURE(error, trainer.answer->reason);
  REQUIRE(trainer.answer->restored);
  CHECK(trainer.answer->restored->step == (are_apart ? Step{2} : Step{1}));
}

}  // namespace

TEST_CASE("assembled: from a Slot and a file that are damaged in different chunks",
          "[unit][node]") {
  const test::CapturedLog quiet(LogLevel::error);
  const bool are_apart = GENERATE(true, false);
  const std::uint64_t seed = GENERATE(range(0, 20));
  CAPTURE(seed);
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  FlippingTrainer trainer(disk, "/scratch/job");
  trainer.begin_and_store_two_steps();
  const Damage damage = draw(seed, are_apart);
  for (const std::size_t chunk : damage.one) trainer.flip(chunk);
  rot(disk, std::string("/scratch/job") + member, damage.other);
  const std::string rotten = disk.content(std::string("/scratch/job") + member);
  trainer.restore_again();
  check(trainer, are_apart);
  if (!are_apart) return;
  CHECK(trainer.offers_refused == 1);
  // The damage on storage is made good from what was put together.
  CHECK(trainer.pass_until(
      [&] { return disk.content(std::string("/scratch/job") + member) != rotten; }));
}

TEST_CASE("assembled: from two places that are damaged in different chunks", "[unit][node]") {
  const test::CapturedLog quiet(LogLevel::error);
  const bool are_apart = GENERATE(true, false);
  const std::uint64_t seed = GENERATE(range(0, 20));
  CAPTURE(seed);
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  disk.put_directory("/far");
  const std::string places = "/scratch/job, /far/job";
  {
    FlippingTrainer trainer(disk, places);
    trainer.begin_and_store_two_steps();
    REQUIRE(
        trainer.pass_until([&] { return disk.exists("/far/job/step-000000002/manifest.json"); }));
  }
  const Damage damage = draw(seed, are_apart);
  rot(disk, std::string("/scratch/job") + member, damage.one);
  rot(disk, std::string("/far/job") + member, damage.other);
  FlippingTrainer trainer(disk, places);
  (void)trainer.restore();
  check(trainer, are_apart);
}

}  // namespace ckpt::node
