// Goal:   no bit of a checkpoint can change unnoticed.
// Method: every bit of the manifest, of the parts, of the headers, of the marker, of the history
// and
//         of `latest`; bytes all over the member files; files cut at every length, grown, swapped,
//         missing.
#include "support/found_checkpoint.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

const std::string step_path = "/scratch/job/step-000000007";

std::uint64_t size_of(const MemoryDisk& disk, const std::string& path) {
  return disk.content(path).size();
}

class SavedStep : public StorageFixture {
 public:
  SavedStep() {
    open();
    must_save(step_id(7));
  }
  bool verifies() {
    const auto report = run(storage::verify_checkpoint(files, step_path));
    return report && report->is_good();
  }
  // `check` is called after each flip, which is then undone.
  template <class Check>
  void flip_every_bit(const std::string& path, Check check, std::uint64_t bytes_max = UINT64_MAX) {
    const std::uint64_t bytes = std::min(size_of(disk, path), bytes_max);
    REQUIRE(bytes > 0);
    for (std::uint64_t at = 0; at < bytes; ++at) {
      for (unsigned bit = 0; bit < 8; ++bit) {
        CAPTURE(path, at, bit);
        disk.flip(path, at, bit);
        check();
        disk.flip(path, at, bit);
      }
    }
  }
  Status read_back(std::uint32_t rank) {
    const MadeShard shard = make_rank(step_id(7), rank);
    std::vector<std::byte> target(shard.record->bytes);
    const storage::TransferHooks hooks;
    Status done = run(
        storage::read_shard(files, storage::ShardPlace(step_path), shard.record, target, hooks));
    if (done) REQUIRE(std::memcmp(target.data(), shard.bytes->data(), target.size()) == 0);
    return done;
  }
};

}  // namespace

TEST_CASE_METHOD(SavedStep, "corruption: any bit of the manifest", "[unit][storage]") {
  const std::string path = step_path + "/manifest.json";
  REQUIRE(verifies());
  flip_every_bit(path, [&] {
    REQUIRE_FALSE(verifies());
    REQUIRE(catalog().checkpoints.empty());
  });
  REQUIRE(verifies());
  const std::uint64_t whole = size_of(disk, path);
  const std::string before = disk.content(path);
  for (std::uint64_t bytes = 0; bytes <= whole + 1; ++bytes) {
    if (bytes == whole) continue;
    CAPTURE(bytes);
    disk.resize(path, bytes);
    REQUIRE_FALSE(verifies());
    const storage::Catalog found = catalog();
    REQUIRE(found.checkpoints.empty());
    REQUIRE(found.rejected.size() == 1);
    REQUIRE(storage::is_damage(found.rejected.front()));
    disk.put(path, before);
  }
  REQUIRE(verifies());
}

TEST_CASE_METHOD(SavedStep, "corruption: any bit of a part costs that rank, and no other",
                 "[unit][storage]") {
  const auto manifest = run(storage::read_manifest(site, "step-000000007")).value();
  const auto read_part = [&](std::uint32_t rank) {
    return run(storage::read_part(files, step_path, manifest, rank));
  };
  const std::string path = step_path + "/rank-00001.part";
  const auto require_named = [&] {
    REQUIRE_FALSE(verifies());
    const auto damaged = read_part(1);
    REQUIRE_FALSE(damaged);
    REQUIRE(damaged.error().code() == Errc::corruption);
    REQUIRE(damaged.error().message().find("rank-00001.part") != std::string::npos);
    REQUIRE(read_part(0));
  };
  REQUIRE(read_part(1));
  const std::uint64_t whole = size_of(disk, path);
  flip_every_bit(path, require_named);
  const std::string before = disk.content(path);
  for (std::uint64_t bytes = 0; bytes <= whole + 1; ++bytes) {
    if (bytes == whole) continue;
    CAPTURE(bytes);
    disk.resize(path, bytes);
    require_named();
    if (bytes % 64 == 0) REQUIRE(catalog().checkpoints.empty());
    disk.put(path, before);
  }
  disk.put(path, disk.content(step_path + "/rank-00000.part"));
  require_named();
  disk.erase(path);
  require_named();
  REQUIRE(catalog().checkpoints.empty());
  disk.put_link(path, "/elsewhere/part");
  require_named();
  disk.erase(path);
  disk.put(path, before);
  REQUIRE(verifies());
  REQUIRE(read_part(2).error().code() == Errc::not_found);
}

TEST_CASE_METHOD(SavedStep, "corruption: any bit of the marker and of the history",
                 "[unit][storage]") {
  format::Timelines timelines;
  timelines.run = test_run;
  timelines.history.resize(2);
  REQUIRE(run(storage::store_timelines(site, timelines, 1)).has_value());
  const std::string marker = "/scratch/job/.libckpt/run.json";
  flip_every_bit(marker, [&] { REQUIRE_FALSE(run(storage::read_run_marker(site)).has_value()); });
  const std::string history = "/scratch/job/.libckpt/timelines.json";
  flip_every_bit(history,
                 [&] { REQUIRE_FALSE(run(storage::load_timelines(site, test_run)).has_value()); });
}

TEST_CASE_METHOD(SavedStep, "corruption: any bit of the header of a member", "[unit][storage]") {
  const std::string path = step_path + "/rank-00000.safetensors";
  std::uint64_t length = 0;
  std::memcpy(&length, disk.content(path).data(), sizeof length);
  REQUIRE(length > 100);
  std::size_t flips = 0;
  const auto check = [&] {
    if (++flips % 8 == 0) REQUIRE_FALSE(verifies());  // It takes ten times as long.
    const Status read = read_back(0);
    REQUIRE_FALSE(read);
    REQUIRE(read.error().code() == Errc::corruption);
  };
  flip_every_bit(path, check, sizeof length + length);
  REQUIRE(read_back(0));
}

TEST_CASE_METHOD(SavedStep, "corruption: no bit of `latest` decides what is restored",
                 "[unit][storage]") {
  format::Timelines timelines;
  timelines.run = test_run;
  timelines.history.resize(1);
  REQUIRE(run(storage::store_timelines(site, timelines, 1)).has_value());
  const std::string path = "/scratch/job/latest";
  const std::string before = disk.content(path);
  flip_every_bit(path, [&] {
    const auto found = run(test::find_checkpoint(storage::Site(files, clock, "/scratch/job")));
    REQUIRE((found ? "" : found.error().message()) == "");
    REQUIRE(found->manifest->at == step_id(7));
    REQUIRE(whole_steps() == std::vector{step_id(7)});
  });
  REQUIRE(disk.content(path) == before);
}

TEST_CASE_METHOD(SavedStep, "corruption: bytes all over the files", "[unit][storage]") {
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    const MadeShard shard = make_rank(step_id(7), rank);
    for (const format::Member& member : shard.record->layout.members) {
      const std::string path = step_path + "/" + member.file_name;
      const std::uint64_t bytes = size_of(disk, path);
      REQUIRE(bytes > 0);
      for (std::uint64_t at = 0; at < bytes; at += at + 64 < bytes ? 11 : 1) {
        CAPTURE(path, at);
        disk.flip(path, at, at % 8);
        REQUIRE_FALSE(verifies());
        const Status read = read_back(rank);
        REQUIRE_FALSE(read.has_value());
        REQUIRE(read.error().code() == Errc::corruption);
        REQUIRE(read.error().text().find(member.file_name) != std::string::npos);
        disk.flip(path, at, at % 8);
      }
      for (const std::uint64_t changed : {std::uint64_t{0}, bytes - 1, bytes + 1}) {
        CAPTURE(path, changed);
        const std::string before = disk.content(path);
        disk.resize(path, changed);
        REQUIRE_FALSE(verifies());
        REQUIRE(read_back(rank).error().code() == Errc::corruption);
        REQUIRE(catalog().checkpoints.empty());
        disk.put(path, before);
      }
      const std::string before = disk.content(path);
      disk.erase(path);
      REQUIRE_FALSE(verifies());
      REQUIRE(read_back(rank).error().code() == Errc::corruption);
      REQUIRE(catalog().checkpoints.empty());
      disk.put(path, before);
    }
  }
  REQUIRE(verifies());
  REQUIRE(read_back(0).has_value());
}

TEST_CASE_METHOD(SavedStep, "corruption: the files of two ranks swapped", "[unit][storage]") {
  const std::string zero = step_path + "/rank-00000.safetensors";
  const std::string one = step_path + "/rank-00001.safetensors";
  const std::string content = disk.content(zero);
  disk.put(zero, disk.content(one));
  disk.put(one, content);
  REQUIRE_FALSE(verifies());
  REQUIRE(read_back(0).error().code() == Errc::corruption);
}

}  // namespace ckpt::test
