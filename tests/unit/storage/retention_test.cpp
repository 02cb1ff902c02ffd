// Goal:   only what is too many is deleted, only what is ours, and never the newest.
// Method: the choice over all small sets of steps; then a directory full of decoys: foreign files,
//         links, look-alikes and strangers' checkpoints, none of which may change.
#include "storage/retention.hpp"

#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

TEST_CASE("retention: the choice spares the newest and the protected", "[unit][storage]") {
  for (std::uint32_t count = 0; count <= 5; ++count) {
    for (std::uint32_t keep = 0; keep <= 6; ++keep) {
      std::vector<storage::Checkpoint> all(count);
      for (std::uint32_t index = 0; index < count; ++index) {
        all[index].at = step_id(100 - index, 1 + index % 2);  // In no order.
      }
      const auto chosen = storage::select_for_deletion(all, {keep, {}, {}}, {});
      CAPTURE(count, keep);
      REQUIRE(chosen.size() == (keep == 0 || count <= keep ? 0 : count - keep));
      std::vector<bool> is_chosen(count, false);
      for (const std::size_t index : chosen) is_chosen[index] = true;
      for (std::uint32_t kept = 0; kept < count; ++kept) {
        for (const std::size_t index : chosen) {
          if (!is_chosen[kept]) REQUIRE(all[index].at < all[kept].at);
        }
      }
      for (const std::size_t spared : chosen) {
        const std::vector protect{all[spared].at};
        const auto less = storage::select_for_deletion(all, {keep, {}, {}}, protect);
        REQUIRE(less.size() == chosen.size() - 1);
        REQUIRE(std::find(less.begin(), less.end(), spared) == less.end());
      }
    }
  }
}

TEST_CASE_METHOD(StorageFixture, "retention: steps that a restore abandoned go first",
                 "[unit][storage]") {
  open();
  for (const std::uint64_t step : {10, 15, 20}) must_save(step_id(step));
  format::Timelines timelines;
  timelines.run = test_run;
  timelines.history = {{1, {}}, {2, step_id(10)}};
  REQUIRE(run(storage::store_timelines(site, timelines, 1)).has_value());
  must_save(step_id(12, 2));
  SECTION("as the history tells") {}
  SECTION("by age where that is damaged") {
    disk.flip("/scratch/job/.libckpt/timelines.json", 5, 0);
  }
  const bool is_known = run(storage::load_timelines(site, test_run)).has_value();
  REQUIRE(retain(2).has_value());
  REQUIRE(catalog().checkpoints.size() == 2);
  REQUIRE(catalog().checkpoints.front().at == (is_known ? step_id(10) : step_id(20)));
  REQUIRE(catalog().checkpoints.back().at == step_id(12, 2));
}

TEST_CASE_METHOD(StorageFixture, "retention: room is made only beside one that is good",
                 "[unit][storage]") {
  open();
  for (const std::uint64_t step : {10, 15, 20}) must_save(step_id(step));
  const auto damage = [&](const char* name) {
    disk.flip(std::string("/scratch/job/") + name + "/rank-00001.safetensors", page_bytes + 3, 2);
  };
  storage::RetentionOrder order;
  order.run = test_run;
  order.rule.max_ckpt_num = 2;
  SECTION("the newest") {}
  SECTION("or the one before") {
    damage("step-000000020");
  }
  SECTION("else nothing goes") {
    damage("step-000000015");
    damage("step-000000020");
    const auto made = run(storage::make_room(site, order));
    REQUIRE_FALSE(made);
    CHECK(made.error().code() == Errc::corruption);
    CHECK(catalog().checkpoints.size() == 3);
    return;
  }
  const auto made = run(storage::make_room(site, order));
  REQUIRE((made ? "" : made.error().message()) == "");
  REQUIRE(made->size() == 1);
  CHECK(made->front().at == step_id(10));
  CHECK(catalog().checkpoints.size() == 2);
  CHECK(run(storage::make_room(site, order))->empty());
}

TEST_CASE_METHOD(StorageFixture, "retention: decoys stay as they are", "[unit][storage]") {
  open();
  disk.put("/elsewhere/manifest.json", "precious");
  disk.put("/elsewhere/rank-00000.safetensors", "precious");
  for (const std::uint64_t step : {1, 2, 3, 4}) must_save(step_id(step));
  const std::vector<std::string> files_of_strangers{
      "/scratch/job/notes.txt",
      "/scratch/job/step-5/rank-00000.safetensors",
      "/scratch/job/step-0000000001/manifest.json",
      "/scratch/job/step-000000001.g1/manifest.json",
      "/scratch/job/step-000000001.backup/manifest.json",
      "/scratch/job/.step-000000001/rank-00000.safetensors",
      "/scratch/job/.step-000000001.t1.abc/rank-00000.safetensors",
      "/scratch/job/.latest.backup",
      "/scratch/job/.libckpt/run.json.old",
      "/scratch/job/step-000000001/notes.txt",
      "/scratch/job/step-000000001/rank-00099.safetensors",
      "/scratch/job/step-000000001/folder/rank-00000.safetensors",
      "/scratch/job/step-000000000/rank-00000.safetensors",
  };
  for (const std::string& path : files_of_strangers) disk.put(path, "precious " + path);
  // A copy of a true manifest under another step's name, and a link to a checkpoint.
  disk.put("/scratch/job/step-000000000.g2/manifest.json",
           disk.content("/scratch/job/step-000000001/manifest.json"));
  disk.put_link("/scratch/job/step-000000001/link", "/elsewhere/manifest.json");
  disk.put_link("/scratch/job/step-000000002/folder", "/elsewhere");
  disk.put_link("/scratch/job/.step-000000009.t1.0000000000000001", "/elsewhere");

  REQUIRE(catalog().rejected.size() == 2);
  REQUIRE(retain(2).has_value());
  discard_stale();
  REQUIRE(whole_steps() == std::vector{step_id(3), step_id(4)});
  for (const std::string& path : files_of_strangers) {
    CAPTURE(path);
    REQUIRE(disk.content(path) == "precious " + path);
  }
  REQUIRE(disk.exists("/scratch/job/step-000000001/link"));
  REQUIRE(disk.exists("/scratch/job/step-000000002/folder"));
  REQUIRE_FALSE(disk.exists("/scratch/job/step-000000001/rank-00000.safetensors"));
  REQUIRE(disk.content("/elsewhere/manifest.json") == "precious");
  REQUIRE(disk.content("/elsewhere/rank-00000.safetensors") == "precious");
  REQUIRE(disk.exists("/scratch/job/.step-000000009.t1.0000000000000001"));
}

TEST_CASE_METHOD(StorageFixture, "retention: another run's checkpoint is not ours to delete",
                 "[unit][storage]") {
  open();
  must_save(step_id(1));
  std::vector<MadeShard> strangers;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    strangers.push_back(make_rank(step_id(2), rank, format::RunId{8, 9}));
  }
  REQUIRE(run(save(site, strangers, 77)).has_value());
  const auto listed = catalog();
  REQUIRE(listed.checkpoints.size() == 1);
  REQUIRE(listed.rejected.size() == 1);
  REQUIRE(listed.rejected.front().name == "step-000000002");
  REQUIRE(listed.rejected.front().code == Errc::invalid_argument);
  const Status refused = run(storage::remove_checkpoint(site, "step-000000002", test_run, "test"));
  REQUIRE(refused.error().code() == Errc::invalid_argument);
  must_save(step_id(3));
  REQUIRE(retain(1).has_value());
  REQUIRE(disk.exists("/scratch/job/step-000000002/manifest.json"));
  REQUIRE(whole_steps() == std::vector{step_id(3)});
}

TEST_CASE_METHOD(StorageFixture, "retention: each delete is in the log before it happens",
                 "[unit][storage]") {
  open();
  for (const std::uint64_t step : {1, 2}) must_save(step_id(step));
  disk.clear_log();
  REQUIRE(retain(1).has_value());
  std::size_t logged_at = 0;
  std::size_t first_delete_at = 0;
  for (std::size_t index = 0; index < disk.log().size(); ++index) {
    const std::string& line = disk.log()[index];
    if (line == "sync_data /scratch/job/.libckpt/log.jsonl") logged_at = index;
    const bool takes_away = line.starts_with("remove") || line.starts_with("rename");
    if (takes_away && first_delete_at == 0) first_delete_at = index;
  }
  REQUIRE(logged_at > 0);
  REQUIRE(first_delete_at > logged_at);
  const std::string log = disk.content("/scratch/job/.libckpt/log.jsonl");
  REQUIRE(log.find("\"operation\":\"delete\",\"path\":\"step-000000001\",\"step\":1") !=
          std::string::npos);
  REQUIRE(log.find("only the newest 1 are kept") != std::string::npos);

  disk.set_hook([](std::string_view verb, const std::string& path) {
    return verb == "write" && path.ends_with("log.jsonl") ? 5 : 0;
  });
  must_save(step_id(3));
  REQUIRE_FALSE(retain(1).has_value());
  REQUIRE(disk.exists("/scratch/job/step-000000002/manifest.json"));
}

}  // namespace ckpt::test
