// Goal:   a run whose marker or history is damaged has a way out: a step that somebody names can be
//         copied, and a job goes on from the copy.
// Method: a run on the real disk, whose hidden files are damaged in turn.
#include <filesystem>
#include <fstream>

#include "cli/commands.hpp"
#include "cli/doctor_checks.hpp"
#include "unit/cli/stored_run.hpp"

namespace ckpt::cli {

namespace {

using Catch::Contains;

class LostScene : public StoredRun {
 public:
  LostScene() {
    older = save(1);
    newest = save(2);
  }
  Result<format::RunMarker> open(const std::string& path) {
    storage::RunOrder order;
    order.job = "job";
    order.fresh_run = test::test_run;
    ++order.fresh_run.low;
    order.attempt = ++attempts;
    return workplace.run(
        storage::open_run_directory({workplace.files(), workplace.clock(), path}, order));
  }
  // Doctor's finding about the directory; empty: no trainer would be refused.
  std::string trouble_for(const std::string& job) const {
    Options options;
    options.job = job;
    options.dir = dir;
    options.runtime_dir = runtime_dir();
    for (const Finding& finding : examine(options)) {
      if (finding.name != "storage") continue;
      return finding.grade == Finding::Grade::trouble ? finding.text : "";
    }
    return "no finding";
  }
  void overwrite(const std::string& path) const { std::ofstream(path) << "x"; }

  std::string older, newest;
  std::string marker = dir + "/.libckpt/run.json";
  std::string history = dir + "/.libckpt/timelines.json";
  std::string saved = directory.file("saved");
};

}  // namespace

TEST_CASE_METHOD(LostScene, "cli lost history: a damaged marker names the way out, and it works",
                 "[unit][cli]") {
  overwrite(marker);
  const std::string advice = "`ckpt cp " + dir + "/step-... ELSEWHERE`";
  const auto refused = open(dir);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::corruption);
  CHECK_THAT(refused.error().text(), Contains("run.json: it is cut off") && Contains(advice));
  CHECK_THAT(must(list(dir)).text, Contains("DAMAGED .libckpt/run.json") && Contains(advice));
  CHECK_FALSE(copy_to(dir, saved));  // The marker does not say whose the newest step is.
  const Outcome copied = must(copy_to(newest, saved));
  CHECK(copied.json["history_lost"] == "");
  CHECK_THAT(copied.text, !Contains("not known"));
  CHECK(must(open(saved)).run == test::test_run);
  CHECK(must(list(saved)).json["newest"] == "step-000000002");
}

TEST_CASE_METHOD(LostScene, "cli lost history: beside a damaged marker the history still counts",
                 "[unit][cli]") {
  store_history({{1, {}}, {2, test::step_id(1)}});
  overwrite(marker);
  const Outcome copied = must(copy_to(newest, saved));
  CHECK(copied.json["source_abandoned"] == true);
  CHECK(copied.json["abandoned"] == false);
  CHECK(must(copy_to(older, directory.file("other"))).json["source_abandoned"] == false);
}

TEST_CASE_METHOD(LostScene, "cli lost history: a named step can be copied where it lies alone",
                 "[unit][cli]") {
  const bool is_damaged = GENERATE(true, false);
  if (is_damaged)
    overwrite(history);
  else
    std::filesystem::remove(history);
  const auto unnamed = copy_to(dir, saved);
  REQUIRE_FALSE(unnamed);
  CHECK_THAT(unnamed.error().text(), Contains("name the checkpoint itself"));
  for (const bool was_there : {false, true}) {
    const Outcome copied = must(copy_to(newest, saved));
    CHECK(copied.json["was_there"] == was_there);
    CHECK_THAT(copied.json["history_lost"].get<std::string>(), Contains("timelines"));
    CHECK_THAT(copied.text, Contains("is not known any more") && Contains("goes on from it"));
  }
  CHECK(must(open(saved)).run == test::test_run);
  CHECK(must(list(saved)).json["newest"] == "step-000000002");
  // Beside another step it may be an abandoned one that looks like the newest.
  const auto refused = copy_to(older, saved);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::corruption);
  CHECK_THAT(refused.error().text(), Contains("name a directory of its own"));
  CHECK_FALSE(std::filesystem::exists(saved + "/step-000000001"));
}

TEST_CASE_METHOD(LostScene, "cli lost history: without a marker the way out is named, too",
                 "[unit][cli]") {
  std::filesystem::remove(marker);
  const auto refused = open(dir);
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().text(), Contains("`ckpt cp " + dir + "/step-... ELSEWHERE`"));
  must(copy_to(newest, saved));
  CHECK(must(open(saved)).run == test::test_run);
}

TEST_CASE_METHOD(LostScene, "cli lost history: doctor finds what a trainer is refused for",
                 "[unit][cli]") {
  CHECK(trouble_for("job").empty());
  CHECK(trouble_for("").empty());
  CHECK_THAT(must(doctor({runtime_dir(), dir})).text, !Contains("the directory of job"));
  CHECK_THAT(trouble_for("gpt2"), Contains("is the directory of job \"job\"") && Contains("gpt2"));
  overwrite(marker);
  CHECK_THAT(trouble_for("job"), Contains("run.json: it is cut off") && Contains("`ckpt cp "));
  std::filesystem::remove(marker);
  CHECK_THAT(trouble_for("job"), Contains("2 checkpoints") && Contains("`ckpt cp "));
  std::filesystem::remove_all(older);
  std::filesystem::remove_all(newest);
  CHECK(trouble_for("job").empty());
}

}  // namespace ckpt::cli
