// Goal:   readers of two places find the newest good step of both, and copies for a running job
//         keep what was abandoned apart from what counts.
// Method: a run in one directory of a disk in memory, with copies of its steps in another one.
#include "storage/copy.hpp"
#include "storage/run_catalog.hpp"
#include "storage/search.hpp"
#include "support/found_checkpoint.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

using Catch::Contains;

const std::string both = "/scratch/job, /scratch/copy";

Task<void> end_here() {
  co_return fail(Errc::cancelled, "flushes first");
}

class TwoPlaces : public StorageFixture {
 public:
  TwoPlaces() {
    open();
    store({{1, {}}});
    for (const std::uint64_t step : {1, 2, 3}) must_save(step_id(step));
  }
  void store(std::vector<format::TimelineStart> history) {
    timelines.run = test_run;
    timelines.history = std::move(history);
    REQUIRE(run(storage::store_timelines(site, timelines, 1)).has_value());
  }
  std::string copy(std::uint64_t step, std::function<Task<void>(std::uint64_t)> before = {}) {
    storage::CopyOrder order;
    const std::string name = storage::step_directory_name(Step{step});
    order.sources.push_back(*run(storage::OpenStep::in(site, name)));
    order.manifest = order.sources.front().manifest();
    order.timelines = std::make_shared<const format::Timelines>(timelines);
    order.attempt = ++attempts;
    order.hooks.before_transfer = std::move(before);
    order.is_of_running_job = true;
    const auto copied = run(storage::copy_checkpoint(target, std::move(order)));
    return copied ? "" : copied.error().message();
  }
  std::string taken() {
    const auto found = run(test::find_checkpoint(storage::Site(files, clock, both)));
    return found ? os::display(found->directory) : found.error().message();
  }

  format::Timelines timelines;
  storage::Site target{files, clock, "/scratch/copy"};
};

}  // namespace

TEST_CASE_METHOD(TwoPlaces, "two places: a step of both is taken from the first",
                 "[unit][storage]") {
  REQUIRE(copy(2).empty());
  REQUIRE(copy(3).empty());
  const auto found = run(storage::find_candidates(storage::Site(files, clock, both)));
  REQUIRE(found.has_value());
  std::vector<std::string> directories;
  for (const std::string& directory : found->directories)
    directories.push_back(os::display(directory));
  CHECK(directories ==
        std::vector<std::string>{"/scratch/job/step-000000003", "/scratch/copy/step-000000003",
                                 "/scratch/job/step-000000002", "/scratch/copy/step-000000002",
                                 "/scratch/job/step-000000001"});
  CHECK(found->copies == std::set<std::size_t>{1, 3});
}

TEST_CASE_METHOD(TwoPlaces, "two places: a step that the first lost is taken from the second",
                 "[unit][storage]") {
  REQUIRE(copy(3).empty());
  SECTION("one step") {
    disk.erase("/scratch/job/step-000000003");
  }
  SECTION("one file") {
    disk.erase("/scratch/job/step-000000003/rank-00000.part");
  }
  SECTION("all of it") {
    disk.erase("/scratch/job");
  }
  CHECK(taken() == "/scratch/copy/step-000000003");
}

TEST_CASE_METHOD(TwoPlaces, "two places: steps that either history abandons are abandoned in both",
                 "[unit][storage]") {
  REQUIRE(copy(3).empty());
  store({{1, {}}, {2, step_id(1)}});  // The second place has not heard of it.
  CHECK(taken() == "/scratch/job/step-000000001");
}

TEST_CASE_METHOD(TwoPlaces, "two places: one that cannot be read does not count as empty",
                 "[unit][storage]") {
  disk.put("/scratch/file", "x");
  disk.put_directory("/scratch/empty");
  for (const char* path : {"/scratch/none, /scratch/file", "/scratch/file, /scratch/none",
                           "/scratch/empty, /scratch/file"}) {
    INFO(path);
    const auto found = run(test::find_checkpoint(storage::Site(files, clock, path)));
    REQUIRE_FALSE(found);
    CHECK(found.error().code() != Errc::not_found);
  }
  const auto nowhere =
      run(test::find_checkpoint(storage::Site(files, clock, "/scratch/none, /scratch/empty")));
  REQUIRE_FALSE(nowhere);
  CHECK(nowhere.error().code() == Errc::not_found);
}

TEST_CASE_METHOD(TwoPlaces, "two places: those of different runs are refused", "[unit][storage]") {
  disk.put_directory("/scratch/copy");
  storage::RunOrder order;
  order.job = "job";
  order.fresh_run = {7, 7};
  order.attempt = 99;
  REQUIRE(run(storage::open_run_directory(target, order)).has_value());
  CHECK_THAT(taken(), Contains("hold different runs"));
}

TEST_CASE_METHOD(TwoPlaces, "two places: a copy for a running job leaves out what was abandoned",
                 "[unit][storage]") {
  store({{1, {}}, {2, step_id(1)}});
  CHECK_THAT(copy(3), Contains("a restore has abandoned it"));
  CHECK_FALSE(disk.exists("/scratch/copy/step-000000003"));
  CHECK(copy(1).empty());
}

TEST_CASE_METHOD(TwoPlaces, "two places: an abandoned step gives its name to one saved again",
                 "[unit][storage]") {
  REQUIRE(copy(3).empty());
  store({{1, {}}, {2, step_id(1)}});
  must_save(step_id(3, 2));
  REQUIRE(copy(3).empty());
  const auto there = run(storage::read_manifest(target, "step-000000003"));
  REQUIRE(there.has_value());
  CHECK((*there)->at == step_id(3, 2));
  CHECK(copy(3).empty());
}

TEST_CASE_METHOD(TwoPlaces, "two places: a copy asks before each Chunk, and ends when it must",
                 "[unit][storage]") {
  std::uint64_t bytes = 0;
  const auto count = [&bytes](std::uint64_t next) {
    bytes += next;
    return go_on();
  };
  REQUIRE(copy(3, count).empty());
  std::uint64_t all = 0;
  const auto manifest = *run(storage::read_manifest(target, "step-000000003"));
  for (const format::ManifestShard& shard : manifest->shards)
    for (const format::StoredFile& file : shard.files) all += file.bytes;
  CHECK(bytes >= all);
  CHECK_THAT(copy(2, [](std::uint64_t) { return end_here(); }), Contains("flushes first"));
  CHECK_FALSE(disk.exists("/scratch/copy/step-000000002"));
}

}  // namespace ckpt::test
