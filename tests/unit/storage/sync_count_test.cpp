// Goal:   a checkpoint costs few waits for the disk, and not more of them as the job goes on.
// Method: saves of several numbers of ranks on a disk in memory that logs its operations; those are
//         counted that wait until the disk has the bytes.
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

// The syncs of one save of so many ranks, all into one directory.
std::size_t syncs_of(std::uint32_t ranks, std::uint64_t blob_bytes) {
  StorageFixture scene;
  scene.open();
  std::size_t syncs = 0;
  for (const std::uint64_t step : {1u, 2u}) {  // The first one makes what later ones find.
    std::vector<MadeShard> shards;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      ShardWish wish;
      wish.run = test_run;
      wish.at = step_id(step);
      wish.rank = rank;
      wish.world_size = ranks;
      wish.blob_bytes = blob_bytes;
      shards.push_back(make_shard(wish));
    }
    scene.disk.clear_log();
    const auto saved = scene.run(save(scene.site, shards, ++scene.attempts));
    REQUIRE((saved ? "" : saved.error().message()) == "");
    syncs = static_cast<std::size_t>(std::ranges::count_if(
        scene.disk.log(), [](const std::string& line) { return line.starts_with("sync_"); }));
  }
  return syncs;
}

}  // namespace

TEST_CASE("syncs: a save waits for each file of a rank once, and for few others",
          "[unit][storage]") {
  for (const std::uint32_t ranks : {1u, 2u, 8u}) {
    CAPTURE(ranks);
    // A rank has its tensors and its part; with blobs, these too. The step has its manifest, its
    // directory, the one above, and the file that becomes `latest`.
    CHECK(syncs_of(ranks, 0) == 2 * ranks + 4);
    CHECK(syncs_of(ranks, 100) == 3 * ranks + 4);
  }
}

}  // namespace ckpt::test
