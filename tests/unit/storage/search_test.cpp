// Goal:   a path finds the newest whole checkpoint at it or below it, and what is passed over is
//         told with its reason.
// Method: runs, parents of runs and strangers on a disk in memory, with damage of each kind.
#include "storage/search.hpp"

#include "support/found_checkpoint.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

using Catch::Contains;

class SearchScene : public StorageFixture {
 public:
  SearchScene() {
    for (const char* path : {"/runs", "/runs/deep", "/runs/deep/er", "/runs/empty"})
      disk.put_directory(path);
  }
  // A run with these steps, each published a minute after the one before.
  storage::Site make(const std::string& path, const std::vector<std::uint64_t>& steps,
                     std::vector<format::TimelineStart> history = {{1, {}}}) {
    site = {files, clock, path};
    open();
    format::Timelines timelines;
    timelines.run = test_run;
    timelines.history = std::move(history);
    REQUIRE(run(storage::store_timelines(site, timelines, 1)).has_value());
    for (const std::uint64_t step : steps) {
      clock.advance(std::chrono::minutes(1));
      must_save(step_id(step));
    }
    return site;
  }
  storage::Candidates must_find(const std::string& path) {
    auto found = run(storage::find_candidates(storage::Site(files, clock, path)));
    REQUIRE((found ? "" : found.error().message()) == "");
    return *found;
  }
  // The checkpoint that is taken, and those that were passed over.
  std::string taken(const std::string& path) {
    const auto found = run(test::find_checkpoint(storage::Site(files, clock, path)));
    if (!found) return found.error().message();
    REQUIRE(found->manifest != nullptr);
    return os::display(found->directory) + " " + storage::describe_passed_over(found->passed_over);
  }
};

}  // namespace

TEST_CASE_METHOD(SearchScene, "search: a run's newest comes first", "[unit][storage]") {
  make("/runs/a", {1, 3, 2});
  CHECK(taken("/runs/a") == "/runs/a/step-000000003 ");
  CHECK(must_find("/runs/a").directories.size() == 3);
  CHECK(taken("/runs/a/step-000000001") == "/runs/a/step-000000001 ");
}

TEST_CASE_METHOD(SearchScene, "search: among several runs the one published last comes first",
                 "[unit][storage]") {
  make("/runs/a", {9});
  make("/runs/deep/er/b", {4});
  make("/runs/c", {5});
  make("/runs/deep/.hidden", {7});
  disk.put("/runs/empty/notes.txt", "mine");
  CHECK(taken("/runs") == "/runs/c/step-000000005 ");
  CHECK(must_find("/runs").directories.size() == 3);
  CHECK(taken("/runs/deep") == "/runs/deep/er/b/step-000000004 ");
  CHECK_THAT(taken("/runs/empty"), Contains("no complete checkpoint in /runs/empty, nor in"));
  CHECK(run(storage::find_candidates(storage::Site(files, clock, "/runs/empty"))).error().code() ==
        Errc::not_found);
  CHECK(run(storage::find_candidates(storage::Site(files, clock, "/nowhere"))).error().code() ==
        Errc::not_found);
  // Else a load "if there is one" would begin anew.
  CHECK(run(storage::find_candidates(storage::Site(files, clock, "memory:job"))).error().code() ==
        Errc::invalid_argument);
}

TEST_CASE_METHOD(SearchScene, "search: checkpoints passed over are named with their reasons",
                 "[unit][storage]") {
  make("/runs/a", {1, 2, 3});
  make("/runs/b", {4});
  SECTION("a damaged manifest") {
    disk.flip("/runs/b/step-000000004/manifest.json", 40, 1);
    CHECK_THAT(taken("/runs"), Contains("/runs/a/step-000000003 passed over: b/step-000000004: ") &&
                                   Contains("do not match"));
    CHECK_THAT(taken("/runs/b"), Contains("no complete checkpoint") && Contains("step-000000004"));
  }
  SECTION("a short file") {
    disk.put("/runs/a/step-000000003/rank-00000.safetensors", "short");
    CHECK_THAT(taken("/runs/a"), Contains("/runs/a/step-000000002 passed over: step-000000003: "));
    // An older one that is damaged would not have been taken.
    disk.put("/runs/a/step-000000001/rank-00000.safetensors", "short");
    CHECK_FALSE(Contains("step-000000001").match(taken("/runs/a")));
  }
  SECTION("an abandoned step") {
    make("/runs/a", {}, {{1, {}}, {2, step_id(1)}});
    CHECK_THAT(taken("/runs/a"), Contains("/runs/a/step-000000001 passed over: step-000000003: "
                                          "abandoned by a restore to an older step; step-0"));
  }
  SECTION("a lost history") {
    disk.flip("/runs/b/.libckpt/timelines.json", 5, 0);
    CHECK_THAT(taken("/runs"), Contains("/runs/a/step-000000003 passed over: b: the history"));
    CHECK_THAT(taken("/runs/b"), Contains("name the checkpoint itself"));
  }
  SECTION("a history that cannot be read is not lost") {
    disk.set_hook([](std::string_view, const std::string& path) {
      return path == "/runs/b/.libckpt/timelines.json" ? EACCES : 0;
    });
    CHECK_THAT(taken("/runs"), Contains("b: the history of its timelines cannot be read: "));
    const auto refused = run(storage::find_candidates(storage::Site(files, clock, "/runs/b")));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == Errc::io);
    CHECK_THAT(refused.error().text(), Contains("as user id ") && Contains("make it readable") &&
                                           Contains("name the checkpoint itself") &&
                                           !Contains("lost"));
    disk.set_hook({});
    CHECK_THAT(taken("/runs/b"), Contains("/runs/b/step-"));
  }
  SECTION("all there is") {
    for (const char* path : {"/runs/a", "/runs/b"})
      disk.flip(std::string(path) + "/.libckpt/timelines.json", 5, 0);
    CHECK(run(storage::find_candidates(storage::Site(files, clock, "/runs"))).error().code() ==
          Errc::corruption);
  }
}

TEST_CASE("search: a long list of reasons is cut", "[unit][storage]") {
  CHECK(storage::describe_passed_over({}).empty());
  CHECK(storage::describe_passed_over({"a", "b"}) == "passed over: a; b");
  CHECK(storage::describe_passed_over({"a", "b", "c", "d", "e", "f", "g"}) ==
        "passed over: a; b; c; d; e; and 2 more");
}

}  // namespace ckpt::test
