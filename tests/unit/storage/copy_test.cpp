// Goal:   a copy has every byte of its source or does not appear, goes on where an earlier one
// ended,
//         and never takes the place of anything else.
// Method: copies from one directory of a disk in memory to another, with every operation of the
//         disk failing once, with damage, and with strangers in the target.
#include "storage/copy.hpp"

#include "format/sealed_json.hpp"
#include "storage/merge_timelines.hpp"
#include "storage/run_catalog.hpp"
#include "support/found_checkpoint.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

using Catch::Contains;

class CopyScene : public StorageFixture {
 public:
  CopyScene() {
    open();
    store({{1, {}}});
    must_save(step_id(1));
    must_save(step_id(2));
  }
  void store(std::vector<format::TimelineStart> history) {
    timelines.run = test_run;
    timelines.history = std::move(history);
    REQUIRE(run(storage::store_timelines(site, timelines, 1)).has_value());
  }
  storage::CopyOrder order_of(std::uint64_t step) {
    auto manifest = *run(storage::read_manifest(site, storage::step_directory_name(Step{step})));
    return copy_order(site, std::move(manifest), timelines, ++attempts, counts);
  }
  Result<storage::Copied> try_copy(std::uint64_t step) {
    counts = {};
    return run(storage::copy_checkpoint(target, order_of(step)));
  }
  storage::Copied must_copy(std::uint64_t step) {
    auto copied = try_copy(step);
    REQUIRE((copied ? "" : copied.error().message()) == "");
    return *copied;
  }
  std::string refusal(std::uint64_t step) {
    const auto copied = try_copy(step);
    REQUIRE_FALSE(copied);
    return copied.error().message();
  }
  // As a restore without a daemon finds it; every byte is compared.
  std::uint64_t newest_in_target() {
    const auto found = run(test::find_checkpoint(storage::Site(files, clock, target.directory())));
    REQUIRE((found ? "" : found.error().message()) == "");
    const std::string name(os::file_name(found->directory));
    REQUIRE(run(check_content(target, storage::describe(*found->manifest, name))).has_value());
    return number(found->manifest->at.step);
  }
  std::vector<std::string> checkpoints_in_target() {
    std::vector<std::string> names;
    const auto read = run(storage::read_run_catalog(target));
    if (!read) return names;
    CHECK(read->catalog.rejected.empty());
    for (const auto& each : read->catalog.checkpoints) names.push_back(each.name);
    return names;
  }

  format::Timelines timelines;
  storage::Site target{files, clock, "/scratch/copy"};
  CopyCounts counts;
};

}  // namespace

TEST_CASE_METHOD(CopyScene, "copy: is the same checkpoint of the same run", "[unit][storage]") {
  const auto copied = must_copy(2);
  CHECK(copied.name == "step-000000002");
  CHECK_FALSE(copied.was_there);
  for (const std::string file : {"manifest.json", "rank-00000.part", "rank-00000.safetensors",
                                 "rank-00001.part", "rank-00001.safetensors"}) {
    CAPTURE(file);
    CHECK(disk.content("/scratch/copy/step-000000002/" + file) ==
          disk.content("/scratch/job/step-000000002/" + file));
  }
  CHECK(disk.content("/scratch/copy/.libckpt/run.json") ==
        disk.content("/scratch/job/.libckpt/run.json"));
  CHECK(disk.content("/scratch/copy/latest") == "step-000000002\n");
  CHECK(newest_in_target() == 2);
  // An older one joins it, and does not become the latest.
  must_copy(1);
  CHECK(disk.content("/scratch/copy/latest") == "step-000000002\n");
  CHECK(newest_in_target() == 2);
  CHECK(must_copy(2).was_there);
  CHECK(counts.copied == 0);
  // The job goes on from the copy.
  storage::RunOrder again;
  again.job = "job";
  again.fresh_run = format::RunId{77, 78};
  const auto opened = run(storage::open_run_directory(target, again));
  REQUIRE(opened.has_value());
  CHECK(opened->run == test_run);
}

TEST_CASE_METHOD(CopyScene, "copy: the history of restores comes along", "[unit][storage]") {
  must_copy(1);
  store({{1, {}}, {2, step_id(1)}});
  must_copy(2);  // Abandoned by now.
  CHECK(newest_in_target() == 1);
  must_save(step_id(3, 2));
  must_copy(3);
  CHECK(newest_in_target() == 3);
  store({{1, {}}, {2, step_id(2)}});  // As if another job had gone on from here.
  must_save(step_id(4, 2));
  CHECK_THAT(refusal(4), Contains("the histories differ about timeline 2"));
  CHECK(newest_in_target() == 3);
}

TEST_CASE("copy: of a history, what abandons one step can be left out", "[unit][storage]") {
  const auto history_for = [](format::StepId at) {
    const format::Timelines all{test_run, {{1, {}}, {2, step_id(1)}, {3, step_id(4, 2)}}, {}};
    return storage::without_abandoning(all, at).history;
  };
  using History = std::vector<format::TimelineStart>;
  CHECK(history_for(step_id(2)) == History{{1, {}}, {3, step_id(4, 2)}});
  CHECK(history_for(step_id(5, 2)) == History{{1, {}}, {2, step_id(1)}});
  CHECK(history_for(step_id(1)).size() == 3);
  // The next timeline gets a higher number than the step's own.
  CHECK(storage::without_abandoning({}, step_id(2, 7)).history == History{{7, {}}});
}

TEST_CASE_METHOD(CopyScene, "copy: whichever operation fails, the next try makes it whole",
                 "[unit][storage]") {
  int failing = 0;
  for (bool has_failed = true; has_failed; ++failing) {
    disk.put_directory("/scratch/t" + std::to_string(failing));
    target = {files, clock, "/scratch/t" + std::to_string(failing) + "/copy"};
    const storage::CopyOrder order = order_of(2);
    int count = 0;
    has_failed = false;
    disk.set_hook([&](std::string_view, const std::string&) {
      if (count++ != failing) return 0;
      has_failed = true;
      return failing % 2 == 0 ? ENOSPC : EIO;
    });
    const auto copied = run(storage::copy_checkpoint(target, order));
    disk.set_hook(nullptr);
    CAPTURE(failing);
    const auto there = checkpoints_in_target();
    CHECK((there.empty() || newest_in_target() == 2));
    if (copied) CHECK(there.size() == 1);
    must_copy(2);
    CHECK(newest_in_target() == 2);
    CHECK(disk.content(target.directory() + "/latest") == "step-000000002\n");
  }
  CHECK(failing > 40);
}

TEST_CASE("copy: a reported copy survives the loss of power", "[unit][storage]") {
  bool is_done = false;
  for (std::uint64_t cut = 0; !is_done; ++cut) {
    CopyScene scene;
    scene.must_copy(2);  // The older one that follows does not become the latest.
    const storage::CopyOrder order = scene.order_of(1);
    const std::uint64_t before = scene.disk.operations();
    scene.disk.fail_at(cut, {5, true, false});
    const auto copied = scene.run(storage::copy_checkpoint(scene.target, order));
    is_done = scene.disk.operations() - before <= cut;
    scene.disk.clear_faults();
    scene.disk.crash(Survival::nothing);
    CAPTURE(cut);
    const auto there = scene.checkpoints_in_target();
    CHECK(there.size() <= 2);
    if (copied) CHECK(there.size() == 2);
    CHECK(scene.newest_in_target() == 2);
    scene.must_copy(1);
    CHECK(scene.checkpoints_in_target().size() == 2);
  }
}

TEST_CASE_METHOD(CopyScene, "copy: files that are there and whole are not copied again",
                 "[unit][storage]") {
  auto order = order_of(2);
  const std::uint64_t rank_bytes = make_rank(step_id(2), 0).record->bytes;
  std::uint64_t seen = 0;
  order.done = [&](std::uint64_t bytes, bool) { seen += bytes; };
  order.is_cancelled = [&] { return seen >= rank_bytes; };  // In the second rank.
  const auto cut = run(storage::copy_checkpoint(target, order));
  REQUIRE_FALSE(cut);
  CHECK(cut.error().code() == Errc::cancelled);
  CHECK(checkpoints_in_target().empty());
  SECTION("as it is") {
    must_copy(2);
    CHECK(counts.found == rank_bytes);
  }
  SECTION("unless a bit of it flipped meanwhile") {
    for (const std::string& path : disk.tree()) {
      if (path.starts_with("/scratch/copy/.step-") && path.ends_with("rank-00000.safetensors"))
        disk.flip(path, 4200, 1);
    }
    must_copy(2);
    CHECK(counts.found == 0);
  }
  CHECK(newest_in_target() == 2);
  CHECK(disk.tree().size() > 0);
  for (const std::string& path : disk.tree()) CHECK_FALSE(path.starts_with("/scratch/copy/.step-"));
}

TEST_CASE_METHOD(CopyScene, "copy: a damaged source is refused", "[unit][storage]") {
  std::string file = "rank-00001.safetensors";
  SECTION("in a tensor") {
    disk.flip("/scratch/job/step-000000002/" + file, 4200, 3);
  }
  SECTION("in a part") {
    file = "rank-00001.part";
    disk.flip("/scratch/job/step-000000002/" + file, 30, 3);
  }
  CHECK_THAT(refusal(2), Contains(file));
  CHECK(checkpoints_in_target().empty());
}

TEST_CASE_METHOD(CopyScene, "copy: what is damaged in the source is read from its other copies",
                 "[unit][storage]") {
  std::vector<MadeShard> shards;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    ShardWish wish;
    wish.at = step_id(3);
    wish.rank = rank;
    wish.world_size = world_size;
    wish.is_regular = true;
    shards.push_back(make_shard(wish));
  }
  std::optional<storage::Compression> compression;
  std::string end = ".safetensors";
  SECTION("plain") {}
  SECTION("compressed") {
    compression.emplace();
    end += ".ckz";
  }
  REQUIRE(run(save(site, shards, ++attempts, compression)));
  must_copy(3);
  const std::string source = "/scratch/job/step-000000003/",
                    other = "/scratch/copy/step-000000003/";
  REQUIRE(disk.exists(source + "rank-00000" + end));
  const auto copied_together = [&](const std::string& to) {
    storage::CopyOrder order = order_of(3);
    order.sources.push_back(*run(storage::OpenStep::in(target, "step-000000003")));
    const storage::Site third(files, clock, to);
    const auto copied = run(storage::copy_checkpoint(third, std::move(order)));
    if (!copied) return copied.error().message();
    const auto report = run(storage::verify_checkpoint(files, third.at("step-000000003")));
    REQUIRE(report);
    CHECK(report->is_good());
    return std::string();
  };
  disk.flip(source + "rank-00000" + end, 200, 1);
  disk.flip(other + "rank-00001" + end, 200, 1);
  disk.flip(source + "rank-00001.part", 30, 1);
  CHECK(copied_together("/scratch/third").empty());
  disk.erase(other + "rank-00000" + end);
  CHECK_THAT(copied_together("/scratch/fourth"), Contains("rank-00000" + end));
}

TEST_CASE_METHOD(CopyScene, "copy: a copy that could not be read may be good", "[unit][storage]") {
  must_copy(2);
  disk.flip("/scratch/job/step-000000002/rank-00000.safetensors", 4200, 1);
  storage::CopyOrder order = order_of(2);
  order.sources.push_back(*run(storage::OpenStep::in(target, "step-000000002")));
  disk.set_hook([](std::string_view, const std::string& path) {
    return path.ends_with("/copy/step-000000002/rank-00000.safetensors") ? EACCES : 0;
  });
  const storage::Site third(files, clock, "/scratch/third");
  const auto copied = run(storage::copy_checkpoint(third, std::move(order)));
  disk.set_hook(nullptr);
  REQUIRE_FALSE(copied);
  CHECK(storage::is_unreadable(copied.error().code()));
}

TEST_CASE_METHOD(CopyScene, "copy: never takes another's place", "[unit][storage]") {
  SECTION("a directory of another run") {
    storage::RunOrder other;
    other.job = "job";
    other.fresh_run = format::RunId{8, 9};
    REQUIRE(run(storage::open_run_directory(target, other)).has_value());
    CHECK_THAT(refusal(2), Contains("another run of job \"job\""));
  }
  SECTION("a directory of another job") {
    storage::RunOrder other;
    other.job = "other";
    other.fresh_run = format::RunId{8, 9};
    REQUIRE(run(storage::open_run_directory(target, other)).has_value());
    CHECK_THAT(refusal(2), Contains("it is the directory of job \"other\""));
  }
  SECTION("another checkpoint of this step") {
    must_copy(2);
    must_save(step_id(2));  // The same bytes at another time.
    clock.advance(std::chrono::seconds(5));
    must_save(step_id(2));
    CHECK_THAT(refusal(2), Contains("another checkpoint is there"));
    CHECK(newest_in_target() == 2);
  }
  SECTION("something else of this name") {
    must_copy(1);
    disk.put("/scratch/copy/step-000000002/notes.txt", "precious");
    CHECK_THAT(refusal(2),
               Contains("something else") && Contains("mv /scratch/copy/step-000000002 ELSEWHERE"));
    CHECK(disk.content("/scratch/copy/step-000000002/notes.txt") == "precious");
  }
  SECTION("a damaged manifest") {
    must_copy(2);
    disk.flip("/scratch/copy/step-000000002/manifest.json", 20, 1);
    CHECK_THAT(refusal(2), Contains("without a whole manifest") &&
                               Contains("mv /scratch/copy/step-000000002 ELSEWHERE"));
  }
  SECTION("a manifest of a newer version") {
    must_copy(2);
    const std::string manifest = "/scratch/copy/step-000000002/manifest.json";
    disk.put(manifest, format::seal_json(format::begin_sealed_json("libckpt-manifest", 99)));
    CHECK_THAT(refusal(2),
               Contains("a newer libckpt") && Contains("left as it is") && !Contains("ELSEWHERE"));
  }
  SECTION("a damaged copy") {
    must_copy(2);
    disk.flip("/scratch/copy/step-000000002/rank-00000.safetensors", 4200, 1);
    CHECK_THAT(refusal(2), Contains("it is there already, and damaged"));
  }
  SECTION("a directory without a parent") {
    target = {files, clock, "/scratch/none/copy"};
    CHECK_THAT(refusal(2), Contains("its parent directory does not exist"));
  }
}

TEST_CASE_METHOD(CopyScene, "copy: without a history beside it the copy begins one",
                 "[unit][storage]") {
  auto order = order_of(2);
  order.timelines = nullptr;
  REQUIRE(run(storage::copy_checkpoint(target, order)).has_value());
  CHECK(newest_in_target() == 2);
}

}  // namespace ckpt::test
