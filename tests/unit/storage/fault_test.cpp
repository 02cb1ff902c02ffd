// Goal:   whichever operation fails, with whichever error, the save says so, what was durable
//         stays, and the next save works; a full disk can be pruned.
// Method: fail the n-th operation for every n, once with seven errors and for good with four, where
//         a write leaves half; then clear the fault and save again. Or take the directory away.
#include <cerrno>

#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

constexpr int errors[] = {EIO, ENOSPC, EDQUOT, EINTR, EAGAIN, ESTALE, EROFS};

// Returns how many operations a save takes.
std::uint64_t fail_everywhere(MemoryDisk::Fault fault) {
  bool is_done = false;
  std::uint64_t at = 0;
  for (; !is_done; ++at) {
    REQUIRE(at < operations_max);
    StorageFixture scene;
    scene.open();
    scene.must_save(step_id(1));
    const std::uint64_t before = scene.disk.operations();
    scene.disk.fail_at(at, fault);
    const auto saved = scene.try_save(step_id(2));
    is_done = scene.disk.operations() - before <= at;
    CAPTURE(at, fault.error, fault.is_sticky, fault.is_partial, saved.has_value());
    scene.disk.clear_faults();
    if (!saved) REQUIRE(saved.error().cause().value() == fault.error);
    if (is_done) REQUIRE(saved.has_value());
    REQUIRE(scene.whole_steps().front() == step_id(1));
    if (saved) REQUIRE(scene.whole_steps().back() == step_id(2));
    scene.discard_stale();
    REQUIRE(scene.leftovers().empty());
    scene.must_save(step_id(2));
    scene.disk.crash(Survival::nothing);
    REQUIRE(scene.whole_steps() == std::vector{step_id(1), step_id(2)});
  }
  return at;
}

constexpr std::uint64_t operations_of_a_save_min = 30;

}  // namespace

TEST_CASE("fault: the n-th operation of a save fails once, for every n", "[unit][storage]") {
  MemoryDisk::Fault fault;
  fault.error = GENERATE(from_range(std::begin(errors), std::end(errors)));
  REQUIRE(fail_everywhere(fault) > operations_of_a_save_min);
}

TEST_CASE("fault: all operations fail from the n-th on, for every n", "[unit][storage]") {
  MemoryDisk::Fault fault;
  fault.error = GENERATE(EIO, ENOSPC, EDQUOT, EROFS);  // EROFS: mounted again, read-only.
  fault.is_sticky = true;
  fault.is_partial = true;
  REQUIRE(fail_everywhere(fault) > operations_of_a_save_min);
}

TEST_CASE("fault: the job's directory vanishes before the n-th operation of a save, for every n",
          "[unit][storage]") {
  bool is_done = false;
  std::uint64_t at = 0;
  for (; !is_done; ++at) {
    REQUIRE(at < operations_max);
    StorageFixture scene;
    scene.open();
    scene.must_save(step_id(1));
    std::uint64_t seen = 0;
    scene.disk.set_hook([&](std::string_view, const std::string&) {
      if (seen++ == at) scene.disk.erase("/scratch/job");
      return 0;
    });
    const auto saved = scene.try_save(step_id(2));
    scene.disk.set_hook({});
    is_done = seen <= at;
    CAPTURE(at, saved.has_value());
    if (is_done) REQUIRE(saved.has_value());
    if (!saved) REQUIRE(saved.error().code() == Errc::not_found);
    // The job goes on in a new directory.
    scene.open();
    scene.must_save(step_id(3));
    REQUIRE(scene.whole_steps().back() == step_id(3));
    REQUIRE(scene.leftovers().empty());
  }
  REQUIRE(at > operations_of_a_save_min);
}

TEST_CASE_METHOD(StorageFixture, "fault: a verified shard is good, whatever closing its files says",
                 "[unit][storage]") {
  open();
  must_save(step_id(1));
  int closes = 0;
  disk.set_hook([&](std::string_view verb, const std::string& path) {
    const bool is_member = path.find(".safetensors") != std::string::npos;
    return verb == "close" && is_member && ++closes > 0 ? EIO : 0;
  });
  CHECK(whole_steps() == std::vector{step_id(1)});
  CHECK(closes > 0);
}

TEST_CASE_METHOD(StorageFixture, "fault: a file whose sync failed is never part of a checkpoint",
                 "[unit][storage]") {
  open();
  int syncs = 0;
  disk.set_hook([&](std::string_view verb, const std::string& path) {
    const bool is_member = path.find(".safetensors") != std::string::npos;
    return verb == "sync_data" && is_member && ++syncs == 1 ? EIO : 0;
  });
  REQUIRE_FALSE(try_save(step_id(1)).has_value());
  REQUIRE(catalog().checkpoints.empty());
  must_save(step_id(1));
  disk.crash(Survival::nothing);
  REQUIRE(whole_steps() == std::vector{step_id(1)});
  REQUIRE(syncs == 3);
}

TEST_CASE_METHOD(StorageFixture, "fault: a full disk fails the save and can be pruned",
                 "[unit][storage]") {
  open();
  must_save(step_id(1));
  must_save(step_id(2));
  disk.set_capacity(disk.used_bytes());
  const auto refused = try_save(step_id(3));
  REQUIRE_FALSE(refused.has_value());
  REQUIRE(refused.error().code() == Errc::exhausted);
  REQUIRE(whole_steps() == std::vector{step_id(1), step_id(2)});
  discard_stale();
  const std::uint64_t used = disk.used_bytes();
  disk.set_capacity(used / 2);
  const auto deleted = retain(1);
  REQUIRE((deleted ? "" : deleted.error().message()) == "");
  REQUIRE(deleted->size() == 1);
  REQUIRE(disk.used_bytes() < used);
  REQUIRE(whole_steps() == std::vector{step_id(2)});
  disk.set_capacity(std::nullopt);
  must_save(step_id(3));
}

TEST_CASE_METHOD(StorageFixture, "fault: retention works where no rename finds room",
                 "[unit][storage]") {
  open();
  for (const std::uint64_t step : {1, 2, 3}) must_save(step_id(step));
  disk.set_hook(
      [](std::string_view verb, const std::string&) { return verb == "rename" ? ENOSPC : 0; });
  REQUIRE(retain(1).has_value());
  disk.set_hook(nullptr);
  REQUIRE(whole_steps() == std::vector{step_id(3)});
  REQUIRE_FALSE(disk.exists("/scratch/job/step-000000001"));
}

TEST_CASE("fault: a directory that cannot be listed or synced at once is read all the same",
          "[unit][storage]") {
  StorageFixture scene;
  scene.open();
  scene.must_save(step_id(1));
  int failures_left = 0;
  int error = 0;
  scene.disk.set_hook([&](std::string_view verb, const std::string&) {
    if (failures_left == 0 || (verb != "list" && verb != "sync_directory")) return 0;
    --failures_left;
    return error;
  });
  for (const int each : {EIO, ENOSPC}) {
    error = each;
    failures_left = 2;
    REQUIRE(scene.whole_steps() == std::vector{step_id(1)});
    REQUIRE(failures_left == 0);
  }
}

TEST_CASE("fault: a checkpoint that the disk does not give at once is listed all the same",
          "[unit][storage]") {
  StorageFixture scene;
  scene.open();
  scene.must_save(step_id(1));
  scene.must_save(step_id(2));
  int failures = 0;
  int failures_left = 0;
  scene.disk.set_hook([&](std::string_view, const std::string& path) {
    if (failures_left == 0 || path.find("step-000000002/") == std::string::npos) return 0;
    --failures_left;
    ++failures;
    return EIO;
  });
  failures_left = 2;
  REQUIRE(scene.whole_steps() == std::vector{step_id(1), step_id(2)});
  REQUIRE(failures == 2);

  // One that it never gives is named, with the reason.
  failures_left = 1'000;
  const storage::Catalog listed = scene.catalog();
  REQUIRE(listed.checkpoints.size() == 1);
  REQUIRE(listed.rejected.size() == 1);
  REQUIRE(listed.rejected.front().name == "step-000000002");
  REQUIRE(listed.rejected.front().code == Errc::io);
  REQUIRE(listed.rejected.front().reason.find("Input/output error") != std::string::npos);
}

TEST_CASE("fault: a step that is removed while it is read is no damage", "[unit][storage]") {
  StorageFixture scene;
  scene.open();
  scene.must_save(step_id(2));
  scene.must_save(step_id(3));
  const std::string old = "/scratch/job/step-000000002", newer = "/scratch/job/step-000000003";
  std::map<std::string, std::string> files;  // The newer one's, which comes before the old goes.
  for (const std::string& path : scene.disk.tree()) {
    if (path.starts_with(newer + "/") && !path.ends_with("/"))
      files[path] = scene.disk.content(path);
  }
  REQUIRE(files.size() > 1);
  const auto seen = scene.catalog().checkpoints.front();
  const auto last = GENERATE(as<std::string>(), "manifest.json", "rank-00001.safetensors");
  INFO("gone before " << last);
  scene.disk.erase(newer);
  bool is_gone = false;
  scene.disk.set_hook([&](std::string_view, const std::string& path) {
    if (is_gone || path != old + "/" + last) return 0;
    is_gone = true;
    for (const auto& [name, content] : files) scene.disk.put(name, content);
    scene.disk.erase(old);
    return 0;
  });
  const storage::Catalog listed = scene.catalog();
  CHECK(is_gone);
  CHECK(listed.rejected.empty());
  REQUIRE(listed.checkpoints.size() == 1);
  CHECK(listed.checkpoints.front().at == step_id(3));

  scene.disk.set_hook(nullptr);
  const auto whether = [&](const std::string& directory) {
    return scene.run(storage::has_gone(scene.files, directory, seen)).value();
  };
  CHECK(whether(old));
  CHECK(whether(newer));  // Another took its place.
  scene.must_save(step_id(2, 2));
  CHECK(whether(old));
}

TEST_CASE("fault: a step that lost a file while it was read is damaged", "[unit][storage]") {
  StorageFixture scene;
  scene.open();
  scene.must_save(step_id(2));
  const auto seen = scene.catalog().checkpoints.front();
  scene.disk.erase("/scratch/job/step-000000002/rank-00001.safetensors");
  REQUIRE(scene.catalog().rejected.size() == 1);
  CHECK(scene.catalog().rejected.front().code == Errc::corruption);
  CHECK_FALSE(
      scene.run(storage::has_gone(scene.files, "/scratch/job/step-000000002", seen)).value());
}

TEST_CASE_METHOD(StorageFixture, "fault: a file beside a checkpoint's is named as foreign",
                 "[unit][storage]") {
  open();
  must_save(step_id(1));
  const std::string directory = "/scratch/job/step-000000001";
  REQUIRE(run(storage::verify_checkpoint(files, directory))->foreign.empty());
  disk.put(directory + "/notes.txt", "mine");
  const auto report = run(storage::verify_checkpoint(files, directory));
  REQUIRE(report);
  CHECK(report->is_good());
  CHECK(report->foreign == std::vector<std::string>{"notes.txt"});
}

TEST_CASE_METHOD(StorageFixture, "fault: a Slot whose memory comes in pieces is written whole",
                 "[unit][storage]") {
  open();
  const MadeShard shard = make_rank(step_id(1), 0);
  const auto name = run(storage::make_work_directory(site, step_id(1), 1));
  REQUIRE(name);
  storage::ShardToWrite source{shard.record, {}};
  constexpr std::size_t piece_bytes = 1000;  // So that pieces end within Chunks.
  for (std::size_t at = 0; at < shard.bytes->size(); at += piece_bytes) {
    os::FileSpan piece;
    const std::size_t bytes = std::min(piece_bytes, shard.bytes->size() - at);
    piece.bytes = std::span(*shard.bytes).subspan(at, bytes);
    source.slot.push_back(piece);
  }
  REQUIRE(run(storage::write_shard(files, source, site.at(*name), {})));
  std::vector<std::byte> target(shard.record->bytes);
  REQUIRE(run(
      storage::read_shard(files, storage::ShardPlace(site.at(*name)), shard.record, target, {})));
  CHECK(std::memcmp(target.data(), shard.bytes->data(), target.size()) == 0);
}

TEST_CASE_METHOD(StorageFixture, "fault: a Slot that ends before its shard does is not written",
                 "[unit][storage]") {
  open();
  const MadeShard shard = make_rank(step_id(1), 0);
  const auto name = run(storage::make_work_directory(site, step_id(1), 1));
  REQUIRE(name);
  storage::ShardToWrite source = source_of(shard);
  source.slot[0].bytes = source.slot[0].bytes.first(shard.record->bytes - 1);
  const auto written = run(storage::write_shard(files, source, site.at(*name), {}));
  REQUIRE_FALSE(written);
  CHECK(written.error().code() == Errc::invalid_argument);
}

TEST_CASE_METHOD(StorageFixture, "fault: damage in no file harms no checkpoint",
                 "[unit][storage]") {
  open();
  const MadeShard sound = make_rank(step_id(1), 0);
  MadeShard shard{sound.record, std::make_shared<std::vector<std::byte>>(*sound.bytes)};
  const format::Extent last = format::member_extents(*shard.record).back();
  const std::uint64_t padding = last.offset + last.bytes;
  REQUIRE(padding < shard.record->bytes);
  shard.bytes->at(padding) ^= std::byte{1};
  const auto write = [&](std::uint64_t attempt) {
    const auto name = run(storage::make_work_directory(site, step_id(1), attempt));
    REQUIRE(name);
    return run(storage::write_shard(files, source_of(shard), site.at(*name), {}));
  };
  REQUIRE(write(1));  // It flipped after the Slot was sealed: the files are what they should be.

  // It was sealed with something else than zeros, which no file keeps.
  auto record = std::make_shared<format::ShardRecord>(*shard.record);
  checksum_chunks(*record, *shard.bytes);
  shard.record = record;
  const auto written = write(2);
  REQUIRE_FALSE(written);
  REQUIRE(written.error().code() == Errc::corruption);
}

}  // namespace ckpt::test
