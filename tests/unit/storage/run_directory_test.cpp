// Goal:   one directory, one job; every node agrees on its run; what is wrong with a directory is
//         said in words that name it.
// Method: nodes that race on a clock with delays; then each kind of wrong directory.
#include "storage/run_directory.hpp"

#include "base/spawn.hpp"
#include "storage/run_catalog.hpp"
#include "support/found_checkpoint.hpp"

#include <cerrno>

#include "support/captured_log.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

storage::RunOrder order_of(const std::string& job, std::uint64_t node) {
  storage::RunOrder order;
  order.job = job;
  order.fresh_run = format::RunId{node, node};
  order.attempt = node;
  return order;
}

DetachedTask open_and_keep(storage::Site site, storage::RunOrder order,
                           std::vector<Result<format::RunMarker>>& results) {
  auto marker = co_await storage::open_run_directory(site, order);
  results.push_back(std::move(marker));
}

}  // namespace

TEST_CASE("run directory: nodes that come at once agree on one run", "[unit][storage]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    asio::io_context context;
    FakeClock clock(context);
    MemoryDisk disk(seed);
    disk.put_directory("/scratch");
    disk.set_latency(std::chrono::milliseconds(1), std::chrono::milliseconds(20));
    MemoryFileSystem files(disk, &clock);
    const storage::Site site(files, clock, "/scratch/job");
    std::vector<Result<format::RunMarker>> results;
    for (std::uint64_t node = 1; node <= 4; ++node) {
      run_detached(context.get_executor(), open_and_keep(site, order_of("job", node), results));
    }
    clock.poll();
    while (results.size() < 4 && clock.advance_to_next()) {
    }
    REQUIRE(results.size() == 4);
    for (const auto& result : results) {
      REQUIRE((result ? "" : result.error().message()) == "");
      REQUIRE(result->run == results.front()->run);
    }
    disk.crash(Survival::nothing);
    REQUIRE(disk.exists("/scratch/job/.libckpt/run.json"));
    REQUIRE(disk.tree().size() == 5);  // scratch, job, .libckpt, run.json, log.jsonl
  }
}

TEST_CASE_METHOD(StorageFixture, "run directory: it opens while another node sweeps it",
                 "[unit][storage]") {
  int sweeps = 0;
  disk.set_hook([&](std::string_view verb, const std::string& path) {
    const bool is_aside = path.find("run.json.") != std::string::npos;
    if (is_aside && (verb == "rename" || verb == "remove_file") && ++sweeps < 3)
      disk.erase(path.substr(0, path.find(' ')));
    return 0;
  });
  open();  // Makes the marker.
  REQUIRE(sweeps == 3);
  sweeps = 1;
  open();  // Proves that it can be written.
  REQUIRE(sweeps == 2);
  REQUIRE(disk.exists("/scratch/job/.libckpt/run.json"));
}

TEST_CASE_METHOD(StorageFixture, "run directory: another job's is refused, and both are named",
                 "[unit][storage]") {
  open();
  const auto other = run(storage::open_run_directory(site, order_of("other", 9)));
  REQUIRE_FALSE(other.has_value());
  REQUIRE(other.error().code() == Errc::invalid_argument);
  REQUIRE(other.error().text().find("\"other\"") != std::string::npos);
  REQUIRE(other.error().text().find("\"job\"") != std::string::npos);
  REQUIRE(other.error().text().find("/scratch/job") != std::string::npos);
}

TEST_CASE_METHOD(StorageFixture, "run directory: a checkpoint is none, nor what lies in one",
                 "[unit][storage]") {
  open();
  disk.put_directory("/scratch/step");
  disk.put("/scratch/step/manifest.json", "{}");
  for (const std::string directory : {"/scratch/step", "/scratch/step/inside"}) {
    INFO(directory);
    const storage::Site there(files, clock, directory);
    const auto result = run(storage::open_run_directory(there, order_of("job", 3)));
    REQUIRE_FALSE(result);
    REQUIRE(result.error().code() == Errc::invalid_argument);
    REQUIRE(result.error().text().find("make " + directory) != std::string::npos);
  }
  REQUIRE_FALSE(disk.exists("/scratch/step/inside"));
  REQUIRE_FALSE(disk.exists("/scratch/step/.libckpt"));
}

TEST_CASE_METHOD(StorageFixture, "run directory: its faults are named", "[unit][storage]") {
  const auto try_open = [&](const std::string& directory) {
    const storage::Site there(files, clock, directory);
    return run(storage::open_run_directory(there, order_of("job", 3)));
  };
  SECTION("no parent") {
    const auto result = try_open("/missing/job");
    REQUIRE(result.error().code() == Errc::invalid_argument);
    REQUIRE(result.error().text().find("/missing/job") != std::string::npos);
    REQUIRE(result.error().text().find("parent") != std::string::npos);
  }
  SECTION("a file") {
    disk.put("/scratch/file", "x");
    const auto result = try_open("/scratch/file");
    REQUIRE(result.error().code() == Errc::invalid_argument);
    REQUIRE(result.error().text().find("not a directory") != std::string::npos);
  }
  SECTION("not writable") {
    open();
    disk.set_hook(
        [](std::string_view verb, const std::string&) { return verb == "create" ? EACCES : 0; });
    const auto result = try_open("/scratch/job");
    REQUIRE(result.error().code() == Errc::io);
    REQUIRE(result.error().text().find("can be written to") != std::string::npos);
  }
  SECTION("a damaged marker") {
    open();
    disk.flip("/scratch/job/.libckpt/run.json", 12, 1);
    const auto result = try_open("/scratch/job");
    REQUIRE(result.error().code() == Errc::corruption);
    REQUIRE(result.error().text().find("`ckpt cp /scratch/job/step-... ELSEWHERE`") !=
            std::string::npos);
  }
  SECTION("checkpoints without a marker, as `cp -r DIR/*` leaves them") {
    open();
    for (const std::uint64_t step : {3, 6, 9}) must_save(step_id(step));
    disk.flip("/scratch/job/step-000000006/manifest.json", 40, 0);
    disk.erase("/scratch/job/.libckpt");
    const auto result = try_open("/scratch/job");
    REQUIRE_FALSE(result.has_value());
    REQUIRE(result.error().code() == Errc::corruption);
    for (const char* part : {"/scratch/job", "3 checkpoints", "step-000000003 to step-000000009",
                             "\"job\"", ".libckpt", "copy it along"}) {
      CAPTURE(part, result.error().text());
      REQUIRE(result.error().text().find(part) != std::string::npos);
    }
    REQUIRE_FALSE(disk.exists("/scratch/job/.libckpt"));  // A later `cp -r` finds its place free.
  }
  SECTION("a marker without checkpoints, and names that are none of ours, are no trouble") {
    disk.put("/scratch/job/step-000000003/model.bin", "another program's");
    disk.put("/scratch/job/notes", "x");
    REQUIRE(try_open("/scratch/job").has_value());
    REQUIRE(try_open("/scratch/job").has_value());
  }
  SECTION("timelines of another run") {
    open();
    format::Timelines timelines;
    timelines.run = format::RunId{5, 5};
    REQUIRE(run(storage::store_timelines(site, timelines, 1)).has_value());
    REQUIRE(run(storage::load_timelines(site, test_run)).error().code() == Errc::invalid_argument);
  }
}

TEST_CASE_METHOD(StorageFixture, "run directory: a full disk refuses a new one alone",
                 "[unit][storage]") {
  const int error = GENERATE(ENOSPC, EDQUOT);
  const auto try_open = [&](const std::string& directory, const std::string& failing) {
    disk.set_hook(
        [=](std::string_view verb, const std::string&) { return verb == failing ? error : 0; });
    const storage::Site there(files, clock, directory);
    return run(storage::open_run_directory(there, order_of("job", 3)));
  };
  CAPTURE(error);
  SECTION("a new one hears how room is made") {
    const std::string failing = GENERATE("make_directory", "create", "write");
    CAPTURE(failing);
    const auto result = try_open("/scratch/new", failing);
    REQUIRE_FALSE(result);
    CHECK(result.error().code() == Errc::exhausted);
    CHECK_THAT(result.error().message(),
               Catch::Contains("/scratch/new") && Catch::Contains("make room") &&
                   Catch::Contains("`ckpt gc DIR --keep N`") &&
                   Catch::Contains(error == ENOSPC ? "No space" : "quota"));
    CHECK(std::ranges::none_of(disk.tree(), [](const std::string& path) {
      return path.find("/run.json.") != std::string::npos;
    }));
  }
  SECTION("one that has a marker is opened, and the proof leaves nothing there") {
    open();
    const auto before = disk.tree();
    CapturedLog log;
    const auto result = try_open("/scratch/job", GENERATE("create", "write"));
    REQUIRE((result ? "" : result.error().message()) == "");
    CHECK(result->job == "job");
    CHECK_THAT(log.text(), Catch::Contains("`ckpt gc /scratch/job --keep N`") &&
                               Catch::Contains("max_ckpt_num=N"));
    CHECK(disk.tree() == before);
  }
}

TEST_CASE_METHOD(StorageFixture, "run directory: a checkpoint is found by its path or its parent's",
                 "[unit][storage]") {
  open();
  format::Timelines timelines;
  timelines.run = test_run;
  timelines.history = {{1, {}}};
  REQUIRE(run(storage::store_timelines(site, timelines, 1)).has_value());
  const auto none = run(test::find_checkpoint(storage::Site(files, clock, "/scratch/job")));
  REQUIRE(none.error().code() == Errc::not_found);
  for (const std::uint64_t step : {1, 2}) must_save(step_id(step));
  const auto itself =
      run(test::find_checkpoint(storage::Site(files, clock, "/scratch/job/step-000000001")));
  REQUIRE(itself.has_value());
  REQUIRE(itself->manifest->at == step_id(1));
  const auto newest = run(test::find_checkpoint(storage::Site(files, clock, "/scratch/job")));
  REQUIRE(newest.has_value());
  REQUIRE(newest->manifest->at == step_id(2));
  disk.flip("/scratch/job/step-000000002/manifest.json", 40, 0);
  const auto older = run(test::find_checkpoint(storage::Site(files, clock, "/scratch/job")));
  REQUIRE(older.has_value());
  REQUIRE(older->manifest->at == step_id(1));
  const auto damaged =
      run(test::find_checkpoint(storage::Site(files, clock, "/scratch/job/step-000000002")));
  REQUIRE(damaged.error().code() == Errc::corruption);
  REQUIRE(run(test::find_checkpoint(storage::Site(files, clock, "/nowhere"))).error().code() ==
          Errc::not_found);
  // A reader of "not found" begins anew.
  disk.flip("/scratch/job/step-000000001/manifest.json", 40, 0);
  REQUIRE(run(test::find_checkpoint(storage::Site(files, clock, "/scratch/job"))).error().code() ==
          Errc::corruption);
}

TEST_CASE_METHOD(StorageFixture, "run directory: shards without a manifest are a damaged step",
                 "[unit][storage]") {
  open();
  format::Timelines timelines;
  timelines.run = test_run;
  timelines.history = {{1, {}}};
  REQUIRE(run(storage::store_timelines(site, timelines, 1)).has_value());
  const auto find = [&](const std::string& path) {
    return run(test::find_checkpoint(storage::Site(files, clock, path)));
  };
  disk.put_directory("/scratch/job/step-000000001");
  disk.put("/scratch/job/step-000000002/notes.txt", "mine");
  for (const storage::Rejected& foreign : catalog().rejected)
    REQUIRE_FALSE(storage::is_damage(foreign));
  REQUIRE(find("/scratch/job").error().code() == Errc::not_found);
  REQUIRE(find("/scratch/job/step-000000001").error().code() == Errc::not_found);

  for (const std::uint64_t step : {7, 8}) must_save(step_id(step));
  disk.erase("/scratch/job/step-000000008/manifest.json");
  REQUIRE(find("/scratch/job")->manifest->at == step_id(7));
  const storage::Catalog listed = catalog();
  REQUIRE(std::ranges::count_if(listed.rejected, storage::is_damage) == 1);
  REQUIRE(listed.rejected.back().name == "step-000000008");
  REQUIRE(listed.rejected.back().reason.find("and no manifest.json") != std::string::npos);
  REQUIRE(find("/scratch/job/step-000000008").error().code() == Errc::corruption);
  disk.erase("/scratch/job/step-000000007/manifest.json");
  SECTION("it is gone") {}
  SECTION("a link stands there") {
    disk.put_link("/scratch/job/step-000000007/manifest.json", "elsewhere");
  }
  SECTION("a directory stands there") {
    disk.put_directory("/scratch/job/step-000000007/manifest.json");
  }
  REQUIRE(find("/scratch/job").error().code() == Errc::corruption);
}

TEST_CASE_METHOD(StorageFixture, "run directory: one that was mounted elsewhere before is refused",
                 "[unit][storage]") {
  open();
  const storage::MountedAt there = run(storage::mounted_at(site)).value();
  storage::RunOrder order = order_of("job", 5);
  order.mounted = there;
  CHECK(run(storage::open_run_directory(site, order)));
  using At = storage::MountedAt;
  for (const At& other : {At{there.device - 1, there.mount}, At{there.device + 1, there.mount},
                          At{there.device, there.mount + 1}}) {
    order.mounted = other;
    const auto refused = run(storage::open_run_directory(site, order));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == Errc::unavailable);
  }
}

TEST_CASE_METHOD(StorageFixture, "run directory: the history of another run is not ours",
                 "[unit][storage]") {
  open();
  format::Timelines others;
  others.run = format::RunId{8, 8};
  others.history = {{1, {}}};
  REQUIRE(run(storage::store_timelines(site, others, 1)));
  const auto loaded = run(storage::load_timelines(site, test_run));
  REQUIRE_FALSE(loaded);
  CHECK(loaded.error().code() == Errc::invalid_argument);
  CHECK(run(storage::load_timelines(site, others.run)).value() == others);
}

TEST_CASE_METHOD(StorageFixture, "run directory: a step under another step's name is damaged",
                 "[unit][storage]") {
  open();
  must_save(step_id(2));
  for (const std::string& path : disk.tree()) {
    const std::string from = "/scratch/job/step-000000002/";
    if (!path.starts_with(from) || path.ends_with("/")) continue;
    disk.put("/scratch/job/step-000000009/" + path.substr(from.size()), disk.content(path));
  }
  CHECK(whole_steps() == std::vector{step_id(2)});
  REQUIRE(catalog().rejected.size() == 1);
  CHECK(catalog().rejected.front().name == "step-000000009");
  CHECK(catalog().rejected.front().code == Errc::corruption);
}

TEST_CASE_METHOD(StorageFixture, "run directory: the later of two generations of a step counts",
                 "[unit][storage]") {
  open();
  must_save(step_id(2));
  // As where the one that was replaced could not be removed; ten comes after two.
  for (const std::string generation : {".g2", ".g10"}) {
    for (const std::string& path : disk.tree()) {
      const std::string from = "/scratch/job/step-000000002/";
      if (!path.starts_with(from) || path.ends_with("/")) continue;
      const std::string to = "/scratch/job/step-000000002" + generation + "/";
      disk.put(to + path.substr(from.size()), disk.content(path));
    }
  }
  const storage::Catalog listed = catalog();
  REQUIRE(listed.checkpoints.size() == 1);
  CHECK(listed.checkpoints.front().name == "step-000000002.g10");
  CHECK(listed.rejected.size() == 2);
}

TEST_CASE_METHOD(StorageFixture, "run directory: a step behind a symbolic link is a damaged step",
                 "[unit][storage]") {
  open();
  disk.put_directory("/elsewhere");
  disk.put_link("/scratch/job/step-000000007", "/elsewhere");
  const storage::Catalog listed = catalog();
  REQUIRE(listed.checkpoints.empty());
  REQUIRE(listed.rejected.size() == 1);
  REQUIRE(storage::is_damage(listed.rejected.front()));
  REQUIRE(listed.rejected.front().reason.find("symbolic link") != std::string::npos);
  REQUIRE(run(test::find_checkpoint(storage::Site(files, clock, "/scratch/job"))).error().code() ==
          Errc::corruption);
}

TEST_CASE_METHOD(StorageFixture, "run directory: a step that a restore abandoned is not found",
                 "[unit][storage]") {
  open();
  for (const std::uint64_t step : {1, 2, 3}) must_save(step_id(step));
  format::Timelines timelines;
  timelines.run = test_run;
  timelines.history = {{1, {}}, {2, step_id(1)}};
  REQUIRE(run(storage::store_timelines(site, timelines, 1)).has_value());
  const auto found = [&] {
    return run(test::find_checkpoint(storage::Site(files, clock, "/scratch/job")));
  };
  const auto by_path = [&](const std::string& name) {
    return run(test::find_checkpoint(storage::Site(files, clock, "/scratch/job/" + name)));
  };
  REQUIRE(found()->manifest->at == step_id(1));
  REQUIRE(by_path("step-000000003")->manifest->at == step_id(3));  // Its name chooses it.

  SECTION("and what came after it is") {
    must_save(step_id(2, 2));
    REQUIRE(found()->manifest->at == step_id(2, 2));
    const auto all = run(storage::read_run_catalog(site));
    REQUIRE(all.has_value());
    REQUIRE(all->history_problem.empty());
    REQUIRE(all->run == test_run);
    for (const storage::Checkpoint& checkpoint : all->catalog.checkpoints)
      REQUIRE(checkpoint.is_abandoned == (checkpoint.at == step_id(3)));
  }
  SECTION("nor is anything where all are abandoned") {
    timelines.history.push_back({3, step_id(0)});
    REQUIRE(run(storage::store_timelines(site, timelines, 2)).has_value());
    REQUIRE(found().error().code() == Errc::not_found);
    REQUIRE(found().error().text().find("step-000000001: abandoned") != std::string::npos);
  }
  SECTION("nor is any guessed where the history is lost") {
    const std::string path = "/scratch/job/.libckpt/timelines.json";
    SECTION("damaged") {
      disk.flip(path, 5, 0);
    }
    SECTION("gone") {
      disk.erase(path);
    }
    REQUIRE(found().error().code() == Errc::corruption);
    REQUIRE(found().error().text().find("name the checkpoint itself") != std::string::npos);
    REQUIRE(by_path("step-000000001")->manifest->at == step_id(1));
    REQUIRE_FALSE(run(storage::read_run_catalog(site))->history_problem.empty());
  }
}

}  // namespace ckpt::test
