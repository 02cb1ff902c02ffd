// Goal:   only what is too many is deleted, only what is ours, and never the newest.
// Method: the choice over all small sets of steps; then a directory full of decoys: foreign files,
//         links, look-alikes and strangers' checkpoints, none of which may change.
#include "storage/retention.hpp"

#include "support/remove_named.hpp"
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

TEST_CASE("retention: what is damaged counts for nothing, and goes after newer good ones",
          "[unit][storage]") {
  std::vector<storage::Checkpoint> all(4);
  for (std::uint32_t index = 0; index < all.size(); ++index) all[index].at = step_id(index);
  storage::RetentionRule rule;
  rule.max_ckpt_num = 2;
  const auto chosen = [&](std::vector<format::StepId> damaged) {
    return storage::select_for_deletion(all, rule, {}, damaged);
  };
  using Indices = std::vector<std::size_t>;
  CHECK(chosen({}) == Indices{0, 1});
  CHECK(chosen({step_id(3)}) == Indices{0});
  CHECK(chosen({step_id(2)}) == Indices{0});
  CHECK(chosen({step_id(1)}) == Indices{1, 0});
  CHECK(chosen({step_id(1), step_id(2), step_id(3)}).empty());

  // As after a restore that passed over the damaged one.
  all[1].is_abandoned = true;
  all.resize(3);
  CHECK(chosen({}) == Indices{1});
  CHECK(chosen({step_id(1)}).empty());

  all.resize(4);
  all[3].at = step_id(3);
  for (storage::Checkpoint& each : all) each.metrics = {{"loss", 9.0}};
  all[1].metrics = {{"loss", 1.0}};
  all[2].metrics = {{"loss", 2.0}};
  rule.best = {1, "loss", false};
  CHECK(chosen({step_id(1)}) == Indices{0});  // The best, and the best that is good.
}

TEST_CASE_METHOD(StorageFixture, "retention: one that cannot be read holds up no other",
                 "[unit][storage]") {
  open();
  for (const std::uint64_t step : {10, 11, 12, 13, 14}) must_save(step_id(step));
  const std::string step = "/scratch/job/step-0000000" + GENERATE(std::string("10"), "12", "14");
  const std::string file =
      GENERATE("", "/manifest.json", "/rank-00001.safetensors", "/rank-00001.part");
  const int error = GENERATE(EACCES, EPERM, EIO, ESTALE);
  CAPTURE(step, file, error);
  disk.set_hook([&](std::string_view verb, const std::string& path) {
    // One who may not read a file may look at it.
    const bool is_file = path == step + file && verb != "status";
    return (file.empty() ? path.starts_with(step) : is_file) ? error : 0;
  });
  storage::Catalog listed = catalog();
  storage::RetentionOrder order;
  order.run = test_run;
  order.rule.max_ckpt_num = 1;
  const auto deleted = run(storage::apply_retention(site, order, listed));
  REQUIRE((deleted ? "" : deleted.error().message()) == "");
  const auto rejected =
      std::ranges::find(listed.rejected, os::file_name(step), &storage::Rejected::name);
  const bool is_newest = step.ends_with("14");
  const bool is_read_only_later = file.find("rank") != std::string::npos;
  if (!is_newest || !is_read_only_later) {
    REQUIRE(rejected != listed.rejected.end());
    CHECK(storage::is_unreadable(*rejected));
    CHECK_FALSE(storage::is_damage(*rejected));
    const bool names_user = rejected->reason.find("as user id ") != std::string::npos;
    CHECK(names_user == (error == EACCES || error == EPERM));
  }
  disk.set_hook({});
  const auto left = whole_steps();  // Reads all of them.
  const format::StepId unread = step_id(std::stoull(step.substr(step.size() - 2)));
  CHECK(std::ranges::find(left, unread) != left.end());
  CHECK(left.size() == (is_newest && is_read_only_later ? 1 : 2));
}

TEST_CASE_METHOD(StorageFixture, "retention: a step saved again stays beside an unreadable one",
                 "[unit][storage]") {
  open();
  must_save(step_id(10));
  const std::string file = GENERATE("manifest.json", "rank-00001.safetensors");
  disk.set_hook([&](std::string_view verb, const std::string& path) {
    return path == "/scratch/job/step-000000010/" + file && verb != "status" ? EACCES : 0;
  });
  must_save(step_id(10, 2));
  disk.set_hook({});
  CHECK(whole_steps() == std::vector{step_id(10), step_id(10, 2)});
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
  const std::string reason = "\"abandoned by a restore to an older step; only the newest 2 are";
  const std::string log = disk.content("/scratch/job/.libckpt/log.jsonl");
  REQUIRE((log.find(reason) != std::string::npos) == is_known);
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
  const Status refused = run(remove_named(site, "step-000000002", test_run));
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
  REQUIRE(log.find("\"reason\":\"only the newest is kept\"") != std::string::npos);

  disk.set_hook([](std::string_view verb, const std::string& path) {
    return verb == "write" && path.ends_with("log.jsonl") ? 5 : 0;
  });
  must_save(step_id(3));
  REQUIRE_FALSE(retain(1).has_value());
  REQUIRE(disk.exists("/scratch/job/step-000000002/manifest.json"));
}

}  // namespace ckpt::test
