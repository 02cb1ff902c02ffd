// Goal:   storage that is unmounted under a running job is reported, nothing is written below its
//         mount point, and storing goes on once it is mounted again.
// Method: the disk puts an empty directory of another device, or of another mount of the same one,
//         in the place of the job's directory, or of the one above.
#include <catch2/catch.hpp>
#include <map>

#include "unit/node/one_rank.hpp"

using Catch::Contains;

namespace ckpt::node {

TEST_CASE("unmounted: nothing is made below the mount point, and it is reported", "[unit][node]") {
  const std::string mount_point = GENERATE("/scratch", "/scratch/job");
  const auto mounted = GENERATE(test::MemoryDisk::Mounted::device, test::MemoryDisk::Mounted::bind);
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  disk.unmount(mount_point, mounted);

  rank.capture(Step{3});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{3}; }));
  rank.clock.advance(std::chrono::seconds(40));
  CHECK_THAT(rank.notice.degraded,
             Contains(mounted == test::MemoryDisk::Mounted::device
                          ? "/scratch/job was on another file system when the job began"
                          : "/scratch/job was mounted from elsewhere when the job began"));
  CHECK_THAT(rank.notice.degraded, Contains("is it mounted?"));
  CHECK(disk.tree().back() == mount_point + "/");
  CHECK(rank.durable == Step{2});

  disk.mount(mount_point);
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{3}; }));
  rank.clock.advance(std::chrono::seconds(1));
  CHECK(rank.notice.degraded.empty());
  for (const char* step : {"1", "2", "3"})
    CHECK(disk.exists(std::string("/scratch/job/step-00000000") + step + "/manifest.json"));
}

TEST_CASE("unmounted: in the moment in which the daemon looks where it is", "[unit][node]") {
  const bool is_bind = GENERATE(true, false);
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  rank.capture(Step{3});
  bool has_marker = false, is_mounted = true;
  disk.set_hook([&](std::string_view verb, const std::string& path) {
    if (verb == "status" && has_marker && std::exchange(is_mounted, false))
      disk.unmount("/scratch",
                   is_bind ? test::MemoryDisk::Mounted::bind : test::MemoryDisk::Mounted::device);
    has_marker = verb == "read" && path.ends_with(".libckpt/run.json");
    return 0;
  });
  REQUIRE(rank.pass_until([&] { return !is_mounted; }));
  rank.clock.advance(std::chrono::seconds(40));
  CHECK_THAT(rank.notice.degraded, Contains("is it mounted?"));
  CHECK(disk.tree().back() == "/scratch/");
  disk.mount("/scratch");
  CHECK(rank.pass_until([&] { return rank.durable == Step{3}; }));
}

TEST_CASE("unmounted: a trainer that starts again then makes nothing there either",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  disk.unmount("/scratch");
  rank.engine->detach(rank.session);
  rank.answer.reset();
  const auto restored = rank.restore();
  REQUIRE(restored);
  CHECK(*restored == Step{2});  // Of memory.
  rank.clock.advance(std::chrono::seconds(40));
  CHECK(disk.tree().back() == "/scratch/");
}

TEST_CASE("unmounted: a directory that is there as it was may have another device",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  std::map<std::string, std::string> files;
  for (const std::string& path : disk.tree())
    if (path.back() != '/') files[path] = disk.content(path);
  disk.unmount("/scratch");
  for (const auto& [path, content] : files) disk.put(path, content);
  rank.capture(Step{3});
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{3}; }));
  CHECK(rank.notice.degraded.empty());
  // That is where it is from now on: what is removed by hand is made again.
  disk.erase("/scratch/job");
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  rank.capture(Step{4});
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{4}; }));
}

TEST_CASE("unmounted: a daemon that requires a mount begins nothing on the root file system",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  EngineOptions options;
  options.require_mount = true;
  {
    test::OneRank rank(disk, 3 * KiB, options);
    const Status attached = rank.attach();
    REQUIRE_FALSE(attached);
    CHECK(attached.error().code() == Errc::unavailable);
    CHECK_THAT(attached.error().text(), Contains("/scratch/job lies on the root file system") &&
                                            Contains("--require-mount"));
    CHECK(disk.tree().back() == "/scratch/");
  }
  disk.unmount("/scratch");  // From now on it has another device.
  test::OneRank rank(disk, 3 * KiB, options);
  rank.begin_and_store_two_steps();
  CHECK(disk.exists("/scratch/job/step-000000002/manifest.json"));
}

}  // namespace ckpt::node
