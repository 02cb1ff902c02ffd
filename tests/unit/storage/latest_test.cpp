// Goal:   `latest` names the newest checkpoint again after a death, and after steps were removed
//         by hand; what is not ours, and what need not change, stays as it is.
// Method: a directory in memory with checkpoints, and every kind of `latest` in it.
#include "storage/latest.hpp"

#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {
namespace {

const std::string latest_path = "/scratch/job/latest";

struct LatestFixture : StorageFixture {
  LatestFixture() {
    open();
    for (const std::uint64_t step : {10, 15, 20}) must_save(step_id(step));
    store({{1, {}}});
  }
  void store(std::vector<format::TimelineStart> history) {
    format::Timelines timelines;
    timelines.run = test_run;
    timelines.history = std::move(history);
    REQUIRE(run(storage::store_timelines(site, timelines, 1)).has_value());
  }
  bool mend() {
    const auto changed = run(storage::mend_latest(site, test_run, catalog(), 7));
    REQUIRE(changed.has_value());
    return *changed;
  }
};

}  // namespace

TEST_CASE_METHOD(LatestFixture, "latest: what dangles, or lags, names the newest checkpoint again",
                 "[unit][storage]") {
  REQUIRE(disk.content(latest_path) == "step-000000020\n");
  CHECK_FALSE(mend());
  SECTION("a step was removed by hand") {
    disk.erase("/scratch/job/step-000000020");
    CHECK(mend());
    CHECK(disk.content(latest_path) == "step-000000015\n");
  }
  SECTION("a daemon died before it wrote the name") {
    disk.put(latest_path, "step-000000015\n");
    CHECK(mend());
    CHECK(disk.content(latest_path) == "step-000000020\n");
  }
  SECTION("it was removed") {
    disk.erase(latest_path);
    CHECK(mend());
    CHECK(disk.content(latest_path) == "step-000000020\n");
  }
  SECTION("it was torn") {
    disk.put(latest_path, "");
    CHECK(mend());
    CHECK(disk.content(latest_path) == "step-000000020\n");
  }
  CHECK_FALSE(mend());
}

TEST_CASE_METHOD(LatestFixture, "latest: it does not go back beside a newer step that is unread",
                 "[unit][storage]") {
  const std::string manifest = "/scratch/job/step-000000020/manifest.json";
  SECTION("unread") {
    const int error = GENERATE(EACCES, EIO, ESTALE);
    disk.set_hook([&](std::string_view verb, const std::string& path) {
      return verb == "read" && path == manifest ? error : 0;
    });
    CHECK_FALSE(mend());
    CHECK(disk.content(latest_path) == "step-000000020\n");
    // A link that lags goes on to what can be read.
    disk.put(latest_path, "step-000000010\n");
    CHECK(mend());
    CHECK(disk.content(latest_path) == "step-000000015\n");
    disk.set_hook({});
  }
  SECTION("damaged: nobody can go on from it") {
    disk.put(manifest, "not one");
    CHECK(mend());
    CHECK(disk.content(latest_path) == "step-000000015\n");
  }
}

TEST_CASE_METHOD(LatestFixture, "latest: an abandoned step is not the newest", "[unit][storage]") {
  store({{1, {}}, {2, step_id(10)}});
  CHECK(mend());
  CHECK(disk.content(latest_path) == "step-000000010\n");
}

TEST_CASE_METHOD(LatestFixture, "latest: without a checkpoint a name that leads nowhere goes",
                 "[unit][storage]") {
  for (const char* name : {"step-000000010", "step-000000015", "step-000000020"})
    disk.erase(std::string("/scratch/job/") + name);
  CHECK(mend());
  CHECK_FALSE(disk.exists(latest_path));
  CHECK_FALSE(mend());
}

TEST_CASE_METHOD(LatestFixture, "latest: a name that is not ours stays", "[unit][storage]") {
  disk.put(latest_path, "global_step15");  // DeepSpeed's.
  CHECK_FALSE(mend());
  CHECK(disk.content(latest_path) == "global_step15");
}

}  // namespace ckpt::test
