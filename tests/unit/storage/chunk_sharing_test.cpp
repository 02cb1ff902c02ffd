// Goal:   a save writes what has changed, and shares the rest with the step before; whatever
//         becomes of that step, and whatever fails, a step that is published has its own bytes.
// Method: two ranks of which a few Chunks change at each step, on a disk in memory that can share.
//         The files are refused, removed, replaced and damaged, and each operation fails.
#include "storage/chunk_sharing.hpp"

#include <cerrno>
#include <cstring>
#include <map>

#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

using storage::ChunkSharing;

constexpr std::uint64_t tensor_bytes = 90'000;  // 22 Chunks, and some of it in a 23rd.
constexpr std::size_t first_frozen = 1;         // Chunk 0 has the header.
constexpr std::size_t frozen_end = 20;          // Chunk 20 changes, Chunk 21 is where files meet.

// A step differs from the one before in two Chunks; a small shard in its header.
MadeShard frozen_shard(format::StepId at, std::uint32_t rank, std::uint64_t bytes = tensor_bytes) {
  ShardWish wish;
  wish.run = test_run;
  wish.rank = rank;
  wish.world_size = world_size;
  wish.tensor_bytes = bytes;
  MadeShard base = make_shard(wish);
  wish.at = at;
  MadeShard shard = make_shard(wish);
  const std::uint64_t begin = first_frozen * page_bytes;
  const std::uint64_t end = bytes == tensor_bytes ? frozen_end * page_bytes : shard.bytes->size();
  std::memcpy(shard.bytes->data() + begin, base.bytes->data() + begin, end - begin);
  auto record = std::make_shared<format::ShardRecord>(*shard.record);
  checksum_chunks(*record, *shard.bytes);
  return {record, shard.bytes};
}

class SharingFixture : public StorageFixture {
 public:
  explicit SharingFixture(std::uint64_t seed = 1) : StorageFixture(seed) { open(); }

  std::shared_ptr<ChunkSharing> sharing_of(std::uint32_t rank) {
    std::optional<ChunkSharing::Earlier> earlier;
    if (const auto& stored = remembered[rank])
      earlier = {stored, site.at(storage::step_directory_name(stored->id.at.step))};
    return std::make_shared<ChunkSharing>(std::move(earlier));
  }
  Result<format::ShardFlushed> write(MadeShard shard, const std::string& work) {
    const std::uint32_t rank = shard.record->id.rank;
    storage::ShardToWrite source = source_of(shard);
    source.sharing = last = sharing_of(rank);
    storage::TransferHooks hooks;
    hooks.before_transfer = [this](std::uint64_t bytes) {
      charged += bytes;
      return go_on();
    };
    auto flushed =
        run(storage::write_shard(files, source, storage::attempt_path(site, work), hooks));
    shared += flushed ? last->bytes_shared() : 0;
    if (!flushed) return flushed;
    remembered[rank] = last->stored();
    return flushed;
  }
  Status try_step(format::StepId at, bool is_published = true) {
    written = disk.bytes_written();
    charged = shared = 0;
    CKPT_TRY(const std::string work, run(storage::make_work_directory(site, at, ++attempts)));
    storage::PublishOrder order;
    order.work_name = work;
    order.job = "job";
    order.run = test_run;
    order.at = at;
    order.world_size = world_size;
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      CKPT_TRY(const auto flushed, write(frozen_shard(at, rank), work));
      order.digests.push_back(flushed.digest);
    }
    written = disk.bytes_written() - written;
    if (!is_published) return {};
    CKPT_TRY(const auto published, run(storage::publish(site, order)));
    return {};
  }
  void step(std::uint64_t number, bool is_published = true) {
    const Status saved = try_step(step_id(number), is_published);
    REQUIRE((saved ? "" : saved.error().message()) == "");
  }
  Status read(const storage::Checkpoint& checkpoint) {
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      const MadeShard expected = frozen_shard(checkpoint.at, rank);
      std::vector<std::byte> target(expected.record->bytes);
      CKPT_CHECK(run(storage::read_shard(files, storage::ShardPlace(site.at(checkpoint.name)),
                                         expected.record, target, {})));
      if (std::memcmp(target.data(), expected.bytes->data(), target.size()) != 0)
        return fail(Errc::corruption, "restored bytes that were never saved");
    }
    return {};
  }
  // Every step that is published is the one that was saved.
  std::vector<format::StepId> whole() {
    std::vector<format::StepId> found;
    for (const storage::Checkpoint& checkpoint : catalog().checkpoints) {
      const Status content = read(checkpoint);
      REQUIRE((content ? "" : content.error().message()) == "");
      found.push_back(checkpoint.at);
    }
    return found;
  }
  std::string member_of(std::uint64_t number, std::uint32_t rank = 0) const {
    const MadeShard shard = frozen_shard(step_id(1), rank);
    const std::string& name = shard.record->layout.members[0].file_name;
    return "/scratch/job/" + storage::step_directory_name(Step{number}) + "/" + name;
  }

  std::map<std::uint32_t, std::shared_ptr<const storage::StoredShard>> remembered;
  std::shared_ptr<ChunkSharing> last;
  std::uint64_t written = 0, shared = 0, charged = 0;  // By the last step.
};

constexpr std::uint64_t frozen_bytes = world_size * (frozen_end - first_frozen) * page_bytes;
// In a round at most one Chunk of a rank is written anew, for there are fewer than 64.
constexpr std::uint64_t anew_bytes = world_size * page_bytes;

}  // namespace

TEST_CASE_METHOD(SharingFixture, "sharing: a step writes what has changed, and is whole",
                 "[unit][storage]") {
  step(1);
  CHECK(shared == 0);
  const std::uint64_t all = written;
  const std::uint64_t charged_for_all = charged;
  step(2);
  CHECK(shared == frozen_bytes);
  CHECK(written == all - frozen_bytes);
  CHECK(charged == charged_for_all - frozen_bytes);
  step(3);
  CHECK(shared == frozen_bytes);
  CHECK_FALSE(last->refusal());
  CHECK(whole().size() == 3);
  REQUIRE(retain(1));
  CHECK(whole() == std::vector{step_id(3)});
}

TEST_CASE_METHOD(SharingFixture, "sharing: what is refused is written", "[unit][storage]") {
  step(1);
  const std::uint64_t all = written;
  const int error = GENERATE(EXDEV, EOPNOTSUPP, EINVAL, ENOTTY, ENOENT, EIO, ENOSPC, EPERM);
  std::uint64_t tries = 0;
  disk.set_hook([&](std::string_view verb, const std::string&) {
    return verb == "clone" && ++tries > 0 ? error : 0;
  });
  step(2);
  CAPTURE(error);
  CHECK(shared == 0);
  CHECK(written == all);
  REQUIRE(last->refusal());
  CHECK(last->refusal()->cause().value() == error);
  const bool is_final = error == EXDEV || error == EOPNOTSUPP || error == EINVAL || error == ENOTTY;
  CHECK((last->refusal()->code() == Errc::unsupported) == is_final);
  CHECK(tries <= world_size * storage::chunks_in_flight);
  disk.set_hook(nullptr);
  CHECK(whole().size() == 2);
  step(3);
  CHECK(shared == frozen_bytes);
  CHECK(whole().size() == 3);
}

TEST_CASE_METHOD(SharingFixture, "sharing: a clone that fails after some have worked",
                 "[unit][storage]") {
  step(1);
  std::uint64_t tries = 0;
  disk.set_hook([&](std::string_view verb, const std::string&) {
    return verb == "clone" && ++tries > 3 ? EIO : 0;
  });
  step(2);
  CHECK(shared == 3 * page_bytes);
  disk.set_hook(nullptr);
  CHECK(whole().size() == 2);
}

TEST_CASE_METHOD(SharingFixture, "sharing: files that are not those that were written",
                 "[unit][storage]") {
  step(1);
  step(2);
  bool is_then = true;  // Before the write began; else after the first Chunks.
  std::function<void()> change;
  SECTION("removed") {
    change = [this] { disk.erase("/scratch/job/step-000000002"); };
  }
  SECTION("removed meanwhile") {
    is_then = false;
    change = [this] { disk.erase("/scratch/job/step-000000002"); };
  }
  SECTION("replaced by other bytes") {
    change = [this] {
      for (const std::uint32_t rank : {0u, 1u})
        disk.put(member_of(2, rank), std::string(disk.content(member_of(2, rank)).size(), 'x'));
    };
  }
  SECTION("replaced meanwhile") {
    is_then = false;
    change = [this] {
      for (const std::uint32_t rank : {0u, 1u})
        disk.put(member_of(2, rank), std::string(disk.content(member_of(2, rank)).size(), 'x'));
    };
  }
  SECTION("truncated meanwhile") {
    is_then = false;
    change = [this] {
      for (const std::uint32_t rank : {0u, 1u}) disk.resize(member_of(2, rank), 6 * page_bytes);
    };
  }
  const std::uint64_t in_first = 2 * page_bytes;
  std::uint64_t tries = 0;
  if (is_then) {
    change();
  } else {
    disk.set_hook([&](std::string_view verb, const std::string&) {
      if (verb != "clone" || ++tries != 3) return 0;
      change();
      return 0;
    });
  }
  step(3);
  CHECK(shared == (is_then ? 0 : in_first));
  REQUIRE(last->refusal());
  CHECK(last->refusal()->code() == Errc::not_found);
  disk.set_hook(nullptr);
  disk.erase("/scratch/job/step-000000002");
  disk.erase("/scratch/job/step-000000001");
  CHECK(whole() == std::vector{step_id(3)});
  step(4);
  CHECK(shared == frozen_bytes);
  CHECK(whole().size() == 2);
}

TEST_CASE_METHOD(SharingFixture, "sharing: a step that was not published is no base",
                 "[unit][storage]") {
  step(1);
  step(2, false);
  CHECK(shared == frozen_bytes);
  step(3);
  CHECK(shared == 0);
  REQUIRE(last->refusal());
  CHECK(last->refusal()->code() == Errc::not_found);
  step(4);
  CHECK(shared == frozen_bytes);
  CHECK(whole().size() == 3);
}

TEST_CASE_METHOD(SharingFixture, "sharing: who remembers nothing writes everything",
                 "[unit][storage]") {
  step(1);
  remembered.clear();
  step(2);
  CHECK(shared == 0);
  CHECK_FALSE(last->refusal());
  step(3);
  CHECK(shared == frozen_bytes);
  CHECK(whole().size() == 3);
}

TEST_CASE_METHOD(SharingFixture, "sharing: an equal checksum alone proves nothing",
                 "[unit][storage]") {
  step(1);
  // The generator of CRC-32: a change that no checksum of this kind notices.
  MadeShard shard = frozen_shard(step_id(2), 0);
  const std::uint64_t generator = (std::uint64_t{1} << 32) | 0x04c11db7u;
  for (unsigned bit = 0; bit <= 32; ++bit) {
    const std::size_t place = 5 * page_bytes + 100 + bit / 8;
    if ((generator >> (32 - bit) & 1) != 0)
      shard.bytes->at(place) ^= static_cast<std::byte>(1u << (bit % 8));
  }
  auto record = std::make_shared<format::ShardRecord>(*shard.record);
  checksum_chunks(*record, *shard.bytes);
  REQUIRE(record->chunk_crcs == shard.record->chunk_crcs);
  REQUIRE(std::memcmp(shard.bytes->data() + 5 * page_bytes,
                      frozen_shard(step_id(1), 0).bytes->data() + 5 * page_bytes, page_bytes) != 0);
  const auto work = run(storage::make_work_directory(site, step_id(2), ++attempts));
  REQUIRE(work);
  shared = 0;
  REQUIRE(write(shard, *work));
  CHECK(shared == frozen_bytes / world_size - page_bytes);
  std::vector<std::byte> target(record->bytes);
  REQUIRE(run(storage::read_shard(files, storage::ShardPlace(site.at(*work)), record, target, {})));
  CHECK(std::memcmp(target.data(), shard.bytes->data(), target.size()) == 0);
}

TEST_CASE_METHOD(SharingFixture, "sharing: damage is found in every file that shares it",
                 "[unit][storage]") {
  step(1);
  disk.flip(member_of(1), 5 * page_bytes, 0);
  step(2);
  CHECK(shared == frozen_bytes);
  for (const storage::Checkpoint& checkpoint : catalog().checkpoints) {
    const Status content = read(checkpoint);
    REQUIRE_FALSE(content);
    CHECK(content.error().code() == Errc::corruption);
  }
}

TEST_CASE_METHOD(SharingFixture, "sharing: each Chunk is written anew once in 64 saves",
                 "[unit][storage]") {
  step(1);
  std::uint64_t in_all = 0;
  for (std::uint64_t number = 2; number < 2 + storage::saves_sharing_max; ++number) {
    step(number);
    CHECK(shared >= frozen_bytes - anew_bytes);
    in_all += shared;
    REQUIRE(retain(2));
  }
  CHECK(in_all == (storage::saves_sharing_max - 1) * frozen_bytes);
  step(2 + storage::saves_sharing_max);
  CHECK(whole().size() == 3);
}

TEST_CASE_METHOD(SharingFixture, "sharing: a shard without a whole Chunk is written",
                 "[unit][storage]") {
  for (const std::uint64_t number : {1, 2}) {
    const auto work = run(storage::make_work_directory(site, step_id(number), ++attempts));
    REQUIRE(work);
    REQUIRE(write(frozen_shard(step_id(number), 0, 2'000), *work));
    const std::string to = site.at(storage::step_directory_name(Step{number}));
    REQUIRE(run(files.rename(site.at(*work), to, os::RenameMode::no_replace)));
  }
  CHECK(last->has_base());
  CHECK(last->bytes_shared() == 0);
  CHECK_FALSE(last->refusal());
}

TEST_CASE("sharing: only an earlier step of the same rank, timeline and tensors is a base",
          "[unit][storage]") {
  const MadeShard shard = frozen_shard(step_id(7, 2), 1);
  format::ShardRecord record = *shard.record;
  storage::StoredShard earlier;
  earlier.job = record.job;
  earlier.run = record.run;
  earlier.id = {step_id(5, 2), 1};
  earlier.model = record.model;
  earlier.chunk_bytes = record.chunk_bytes;
  earlier.files.resize(record.layout.members.size());
  CHECK(may_share(earlier, record));
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
    earlier.id.rank = 0;
  }
  SECTION("other tensors") {
    record.model = {8, 8};
  }
  SECTION("another run") {
    earlier.run = {9, 9};
  }
  SECTION("another job") {
    earlier.job = "other";
  }
  SECTION("Chunks of another size") {
    earlier.chunk_bytes *= 2;
  }
  SECTION("other files") {
    earlier.files.pop_back();
  }
  CHECK_FALSE(may_share(earlier, record));
}

TEST_CASE("sharing: whichever operation fails, what is published is whole", "[unit][storage]") {
  const MemoryDisk::Fault fault =
      GENERATE(MemoryDisk::Fault{EIO, false, true}, MemoryDisk::Fault{ENOSPC, true, false});
  const bool is_power_lost = GENERATE(false, true);
  bool is_done = false;
  for (std::uint64_t at = 0; !is_done; ++at) {
    REQUIRE(at < 500);
    SharingFixture scene(at + 1);
    scene.step(1);
    scene.step(2);
    const std::uint64_t before = scene.disk.operations();
    scene.disk.fail_at(at, fault);
    const Status saved = scene.try_step(step_id(3));
    is_done = scene.disk.operations() - before <= at;
    scene.disk.clear_faults();
    CAPTURE(at, fault.error, is_power_lost, saved.has_value());
    if (!saved) CHECK(saved.error().cause().value() == fault.error);
    if (is_power_lost) scene.disk.crash(Survival::random);
    const auto whole = scene.whole();
    REQUIRE(whole.size() >= (saved ? 3u : 2u));
    scene.step(4);
    REQUIRE(scene.whole().back() == step_id(4));
  }
}

}  // namespace ckpt::test
