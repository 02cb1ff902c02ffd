// Goal:   damaged files of a published checkpoint are replaced by the same bytes, or stay as they
//         are; whatever breaks off, the checkpoint is whole for all other ranks, and can go.
// Method: a published step with a flipped byte is written anew from the Slot: on a good disk, on
//         one that fails or crashes in the middle, and from a Slot that is not the right one.
#include "storage/rewrite.hpp"

#include "unit/storage/storage_fixture.hpp"

namespace ckpt::storage {

using test::make_rank;
using test::step_id;
using test::StorageFixture;

struct RewriteFixture : StorageFixture {
  RewriteFixture() {
    open();
    must_save(step_id(5));
    must_save(step_id(7));
    damage(member);
  }
  void damage(const std::string& path) { disk.flip(path, page_bytes + 3, 2); }
  Status rewrite(const test::MadeShard& shard) {
    ShardToWrite source = test::source_of(shard);
    source.turn = turn;
    return run(rewrite_shard(site, "step-000000007", source, TransferHooks()));
  }
  std::size_t files_aside() {
    std::size_t count = 0;
    for (const std::string& path : disk.tree())
      count += path.find(".t1234567") != std::string::npos;
    return count;
  }
  bool is_whole() {
    const auto report = run(verify_checkpoint(files, "/scratch/job/step-000000007"));
    REQUIRE(report.has_value());
    return report->is_good() && report->foreign.empty();
  }

  const std::string member = "/scratch/job/step-000000007/rank-00001.safetensors";
  std::uint32_t turn = 1234567;
};

TEST_CASE_METHOD(RewriteFixture, "rewrite: the damaged file is as it was published",
                 "[unit][storage]") {
  REQUIRE_FALSE(is_whole());
  const std::string manifest = disk.content("/scratch/job/step-000000007/manifest.json");
  REQUIRE(rewrite(make_rank(step_id(7), 1)));
  REQUIRE(is_whole());
  REQUIRE(files_aside() == 0);
  REQUIRE(disk.content("/scratch/job/step-000000007/manifest.json") == manifest);
  disk.crash(test::Survival::nothing);
  REQUIRE(whole_steps() == std::vector{step_id(5), step_id(7)});
}

TEST_CASE_METHOD(RewriteFixture, "rewrite: a part that is gone comes again", "[unit][storage]") {
  REQUIRE(run(files.remove_file("/scratch/job/step-000000007/rank-00001.part")));
  REQUIRE_FALSE(is_whole());
  REQUIRE(rewrite(make_rank(step_id(7), 1)));
  REQUIRE(is_whole());
}

TEST_CASE_METHOD(StorageFixture, "rewrite: a compressed file becomes the same bytes again",
                 "[unit][storage]") {
  open();
  const Compression packed = *parse_compression("zstd:3").value();
  test::ShardWish wish;
  wish.at = step_id(7);
  wish.tensor_bytes = 200 * page_bytes;
  wish.chunk_bytes = 16 * page_bytes;
  wish.is_regular = true;
  const test::MadeShard shard = test::make_shard(wish);
  // The storage answers in an order of its own, as disks do.
  disk.set_latency(std::chrono::milliseconds(1), std::chrono::milliseconds(30));
  REQUIRE(run(test::save(site, {shard}, 9, packed)));
  const std::string path = "/scratch/job/step-000000007/rank-00000.safetensors.ckz";
  const std::string before = disk.content(path);
  REQUIRE_FALSE(before.empty());
  disk.flip(path, 5, 3);
  ShardToWrite source = test::source_of(shard, packed);
  source.turn = 1234567;
  SECTION("with the compression that it was stored with") {
    const Status rewritten = run(rewrite_shard(site, "step-000000007", source, TransferHooks()));
    REQUIRE((rewritten ? "" : rewritten.error().message()) == "");
    CHECK(disk.content(path) == before);
  }
  SECTION("not with another") {
    source.compression = Compression{};
    const std::string damaged = disk.content(path);
    CHECK_FALSE(run(rewrite_shard(site, "step-000000007", source, TransferHooks())));
    CHECK(disk.content(path) == damaged);
  }
  for (const std::string& each : disk.tree()) CHECK(each.find(".t1234567") == std::string::npos);
}

TEST_CASE_METHOD(RewriteFixture, "rewrite: another Slot than the one that was stored is refused",
                 "[unit][storage]") {
  const std::string before = disk.content(member);
  REQUIRE(rewrite(make_rank(step_id(5), 1)).error().code() == Errc::invalid_argument);
  test::MadeShard damaged = make_rank(step_id(7), 1);
  damaged.bytes = std::make_shared<std::vector<std::byte>>(*damaged.bytes);
  (*damaged.bytes)[page_bytes + 9] ^= std::byte{4};
  REQUIRE(rewrite(damaged).error().code() == Errc::corruption);
  REQUIRE(disk.content(member) == before);
  REQUIRE(files_aside() == 0);
}

TEST_CASE_METHOD(RewriteFixture,
                 "rewrite: an attempt that fails is repeated, or goes with the step",
                 "[unit][storage]") {
  const std::string verb = GENERATE("create", "sync_data", "rename", "sync_directory");
  int calls = 0;
  disk.set_hook([&](std::string_view called, const std::string& path) {
    const bool is_here = path.find("step-000000007") != std::string::npos;
    return called == verb && is_here && ++calls == 1 ? EIO : 0;
  });
  const Status failed = rewrite(make_rank(step_id(7), 1));
  disk.set_hook(nullptr);
  CAPTURE(verb);
  REQUIRE(calls == 1);
  REQUIRE_FALSE(failed);
  SECTION("repeated") {
    REQUIRE(rewrite(make_rank(step_id(7), 1)));
    REQUIRE(files_aside() == 0);
    REQUIRE(is_whole());
  }
  SECTION("deleted") {
    must_save(step_id(9));
    REQUIRE(retain(1));
    REQUIRE_FALSE(disk.exists("/scratch/job/step-000000007"));
    REQUIRE(files_aside() == 0);
  }
}

TEST_CASE_METHOD(RewriteFixture, "rewrite: files of an attempt that died go before the next one",
                 "[unit][storage]") {
  disk.set_hook([&](std::string_view called, const std::string& path) {
    const bool is_aside = path.find(".t1234567") != std::string::npos;
    return is_aside && (called == "rename" || called == "remove_file") ? EIO : 0;
  });
  REQUIRE_FALSE(rewrite(make_rank(step_id(7), 1)));
  disk.set_hook(nullptr);
  REQUIRE(files_aside() > 0);
  turn = 7654321;
  REQUIRE(rewrite(make_rank(step_id(7), 1)));
  REQUIRE(files_aside() == 0);
  REQUIRE(is_whole());
}

TEST_CASE_METHOD(RewriteFixture, "rewrite: a step that is saved again meanwhile is not touched",
                 "[unit][storage]") {
  bool is_saved = false;
  disk.set_hook([&](std::string_view called, const std::string& path) {
    if (is_saved || called != "sync_data" || path.find(".t1234567") == std::string::npos) return 0;
    is_saved = true;
    must_save(step_id(7, 2));
    return 0;
  });
  const Status written = rewrite(make_rank(step_id(7), 1));
  disk.set_hook(nullptr);
  REQUIRE(is_saved);
  REQUIRE_FALSE(written);
  REQUIRE(run(read_manifest(site, "step-000000007")).value()->at == step_id(7, 2));
  REQUIRE(is_whole());
}

}  // namespace ckpt::storage
