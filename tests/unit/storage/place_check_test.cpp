// Goal:   commands that look at a place before they use it see what is there, and leave nothing.
// Method: a run, a checkpoint and nothing on a disk in memory; a look fails. (A file: gc_test.)
#include "storage/place_check.hpp"

#include "storage/checkpoint_name.hpp"
#include "storage/run_check.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

using Catch::Contains;

class PlaceScene : public StorageFixture {
 public:
  PlaceScene() {
    open();
    must_save(step_id(1));
    must_save(step_id(2));
    format::Timelines timelines;
    timelines.run = test_run;
    timelines.history = {{1, {}}};
    REQUIRE(run(storage::store_timelines(site, timelines, ++attempts)));
  }
  storage::Site at(const std::string& path) { return {files, clock, path}; }
  // Problems beside the checkpoints, in one line each.
  std::vector<std::string> problems() {
    std::vector<std::string> found;
    const auto catalog = run(storage::check_run(site));
    REQUIRE(catalog);
    CHECK(catalog->checkpoints.size() == 2);
    for (const storage::Rejected& each : catalog->rejected)
      found.push_back(each.name + ": " + each.reason);
    return found;
  }
  void name_latest(const std::string& text) {
    REQUIRE(run(files.remove_file("/scratch/job/latest")));
    if (!text.empty()) disk.put("/scratch/job/latest", text);
  }
};

}  // namespace

TEST_CASE_METHOD(PlaceScene, "place: a run, a checkpoint and nothing are told apart",
                 "[unit][storage]") {
  CHECK(run(storage::check_there(site)));
  CHECK_FALSE(run(storage::is_checkpoint(site)).value());
  CHECK(run(storage::is_checkpoint(at("/scratch/job/step-000000001"))).value());
  CHECK_FALSE(run(storage::is_checkpoint(at("/scratch/nothing"))).value());
  CHECK(run(storage::check_there(at("/scratch/nothing"))).error().code() == Errc::not_found);
}

TEST_CASE_METHOD(PlaceScene, "place: a look that fails is no answer", "[unit][storage]") {
  disk.fail_at(0, MemoryDisk::Fault());
  const auto looked = run(storage::is_checkpoint(site));
  REQUIRE_FALSE(looked);
  CHECK(looked.error().code() == Errc::io);
}

TEST_CASE_METHOD(PlaceScene, "place: a proof that it can be written leaves nothing",
                 "[unit][storage]") {
  const auto before = disk.tree();
  CHECK(run(storage::prove_writable(site, 7)));
  CHECK(disk.tree() == before);
  CHECK(run(storage::room_in(site)));
  CHECK_FALSE(run(storage::prove_writable(at("/scratch/nothing"), 7)));
}

TEST_CASE_METHOD(PlaceScene, "place: the name of a checkpoint is read back", "[unit][storage]") {
  CHECK(storage::checkpoint_name(Step{900}) == "step-000000900");
  CHECK(storage::step_named("step-000000900") == Step{900});
  CHECK(storage::step_named("step-000000900.g2") == Step{900});
  CHECK_FALSE(storage::step_named("step-900"));
}

TEST_CASE_METHOD(PlaceScene, "run check: what is wrong beside the checkpoints", "[unit][storage]") {
  CHECK(problems().empty());
  name_latest("step-000000001\n");
  CHECK(problems() == std::vector<std::string>{"latest: it names step-000000001, and "
                                               "step-000000002 is newer"});
  name_latest("step-000000002");  // No line.
  REQUIRE(problems().size() == 1);
  CHECK_THAT(problems().front(), Contains("no whole checkpoint here"));
  name_latest("step\xff\n\x1b[2J\n");
  CHECK(problems() == std::vector<std::string>{"latest: it names \"step\\xff\\x0a\\x1b[2J\", "
                                               "which is no whole checkpoint here"});
  name_latest("");
  CHECK(problems().empty());  // The first save may be running.
  REQUIRE(run(files.remove_file("/scratch/job/.libckpt/timelines.json")));
  REQUIRE(problems().size() == 1);
  CHECK_THAT(problems().front(), Contains("timelines.json") && Contains("it is missing"));
  REQUIRE(run(files.remove_file("/scratch/job/.libckpt/run.json")));
  REQUIRE(problems().size() == 1);
  CHECK_THAT(problems().front(), Contains("run.json") && Contains("no .libckpt/run.json"));
}

}  // namespace ckpt::test
