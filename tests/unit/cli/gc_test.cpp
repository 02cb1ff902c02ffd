// Goal:   `ckpt gc` removes what its rule does not keep, and nothing that somebody could need.
// Method: a run on the real disk with more checkpoints than are to stay, attempts of several ages,
//         and foreign files; damage to what would be left.
#include <catch2/catch.hpp>
#include <fstream>

#include "cli/commands.hpp"
#include "storage/retention_record.hpp"
#include "unit/cli/stored_run.hpp"

namespace ckpt::cli {

namespace {

using Catch::Contains;
using Names = std::vector<std::string>;

class GcScene : public StoredRun {
 public:
  GcScene() {
    given.dir = dir;
    given.runtime_dir = runtime_dir();
    given.rule.max_ckpt_num = 2;
  }
  std::string leave_attempt(std::uint64_t step) {
    const std::string name =
        must(workplace.run(storage::make_work_directory(site(), test::step_id(step), ++attempts)));
    const std::filesystem::path file = std::filesystem::path(dir) / name / "rank-00000.safetensors";
    std::ofstream(file) << "half";
    return name;
  }
  GcOptions given;
};

}  // namespace

TEST_CASE_METHOD(GcScene, "gc: the newest stay, and a dry run changes nothing", "[unit][cli]") {
  for (const std::uint64_t step : {1, 2, 3, 4}) save(step);
  const Names all = names();
  given.dry_run = true;
  const Outcome shown = must(collect_garbage(given));
  CHECK(names() == all);
  CHECK_THAT(shown.text, Contains("step-000000001") && Contains("step-000000002"));
  CHECK_THAT(shown.text, Contains("Would remove 2 checkpoints and no attempts"));
  CHECK(shown.json["checkpoints"].size() == 2);
  CHECK(shown.json["dry_run"] == true);
  CHECK_FALSE(shown.is_trouble);
  given.dry_run = false;
  const Outcome done = must(collect_garbage(given));
  CHECK_THAT(done.text, Contains("Removed 2 checkpoints"));
  CHECK(done.json["bytes"] == shown.json["bytes"]);
  CHECK(names() == Names{"step-000000003", "step-000000004"});
  const Outcome again = must(collect_garbage(given));
  CHECK_THAT(again.text, Contains("Nothing to remove"));
  CHECK(names() == Names{"step-000000003", "step-000000004"});
}

TEST_CASE_METHOD(GcScene, "gc: without a number of checkpoints none goes", "[unit][cli]") {
  given.rule = {};
  for (const std::uint64_t step : {1, 2, 3}) save(step);
  const Outcome before = must(collect_garbage(given));
  CHECK(names().size() == 3);
  CHECK(before.json["rule"] == "all are kept");
  CHECK(before.json["recorded"] == false);
  storage::RetentionRecord record;
  record.run = test::test_run;
  record.rule = {1, {{2, {}}}, {}};
  must(workplace.run(storage::record_retention(site(), record)));
  const Outcome recorded = must(collect_garbage(given));
  CHECK(recorded.json["rule"] == "all are kept");
  CHECK(recorded.json["recorded"] == true);
  CHECK(names().size() == 3);
}

TEST_CASE_METHOD(GcScene, "gc: chosen steps and the best ones stay besides", "[unit][cli]") {
  given.rule = {1, {{4, {}}}, {1, "loss", false}};
  for (const std::uint64_t step : {2, 3, 4, 5, 6}) save(step, step == 3 ? 0.1 : 0.5);
  must(collect_garbage(given));
  CHECK(names() == Names{"step-000000003", "step-000000004", "step-000000006"});
}

TEST_CASE_METHOD(GcScene, "gc: the last good one stays where newer ones are damaged",
                 "[unit][cli]") {
  given.rule.max_ckpt_num = 1;
  save(1);
  const std::string newest = save(2);
  damage(newest + "/rank-00001.safetensors");
  const auto refused = collect_garbage(given);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::corruption);
  CHECK_THAT(refused.error().text(),
             Contains("step-000000002 is damaged") && Contains("nothing is removed"));
  given.dry_run = true;  // It promises nothing else.
  const auto shown = collect_garbage(given);
  REQUIRE_FALSE(shown);
  CHECK(shown.error().text() == refused.error().text());
  given.dry_run = false;
  CHECK(names() == Names{"step-000000001", "step-000000002"});
  given.rule.max_ckpt_num = 2;  // The older of the two is whole.
  save(3);
  damage(dir + "/step-000000003/rank-00001.safetensors");
  CHECK_FALSE(collect_garbage(given));
  save(4);
  must(collect_garbage(given));
  CHECK(names() == Names{"step-000000003", "step-000000004"});
}

TEST_CASE_METHOD(GcScene, "gc: what the job keeps by its own options stays", "[unit][cli]") {
  storage::RetentionRecord record;
  record.run = test::test_run;
  record.rule = {3, {{2, {}}}, {1, "loss", false}};
  must(workplace.run(storage::record_retention(site(), record)));
  for (const std::uint64_t step : {1, 2, 3, 4, 5}) save(step, step == 3 ? 0.1 : 0.5);
  given.rule = {1, {}, {}};
  SECTION("unless options of the command count") {
    given.has_every = given.has_best = true;
    given.rule.keep_every = {{1000, {}}};
    const Outcome outcome = must(collect_garbage(given));
    CHECK(names() == Names{"step-000000005"});
    CHECK_THAT(outcome.text, Contains("steps that 1000 divides"));
  }
  SECTION("one of them counts instead of its own") {
    given.has_best = true;
    must(collect_garbage(given));
    CHECK(names() == Names{"step-000000002", "step-000000004", "step-000000005"});
  }
  SECTION("both") {
    const Outcome outcome = must(collect_garbage(given));
    CHECK(names() == Names{"step-000000002", "step-000000003", "step-000000004", "step-000000005"});
    CHECK(outcome.json["recorded"] == true);
    CHECK_THAT(outcome.text, Contains("steps that 2 divides") && Contains("least loss"));
  }
  SECTION("if it can be read") {
    const std::string file = dir + "/.libckpt/retention.json";
    damage(file, 40);
    const auto refused = collect_garbage(given);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == Errc::corruption);
    CHECK_THAT(refused.error().text(),
               Contains("--keep-every") && Contains("its next save writes it anew"));
    CHECK(names().size() == 5);
    given.has_every = given.has_best = true;
    must(collect_garbage(given));
    CHECK(names() == Names{"step-000000005"});
  }
}

TEST_CASE_METHOD(GcScene, "gc: a job that has recorded nothing is named", "[unit][cli]") {
  given.rule.max_ckpt_num = 1;
  save(1);
  save(2);
  const Outcome outcome = must(collect_garbage(given));
  CHECK_THAT(outcome.text, Contains("recorded no keep_every"));
  CHECK(outcome.json["recorded"] == false);
}

TEST_CASE_METHOD(GcScene, "gc: of two places one is asked for", "[unit][cli]") {
  given.dir = dir + ", " + directory.file("far");
  const auto refused = collect_garbage(given);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  CHECK_THAT(refused.error().text(), Contains("needs one place"));
  RepairOptions repairs{given.dir, dir};
  CHECK_THAT(repair(repairs).error().text(), Contains("needs one place"));
  CopyOptions copies;
  copies.from = dir;
  copies.to = given.dir;
  CHECK_THAT(copy(copies).error().text(), Contains("needs one place"));
}

TEST_CASE_METHOD(GcScene, "gc: an attempt of the last hour stays", "[unit][cli]") {
  save(1);
  const std::string attempt = leave_attempt(2);
  const Outcome outcome = must(collect_garbage(given));
  CHECK(names() == Names{attempt, "step-000000001"});
  CHECK_THAT(outcome.text, Contains("Not touched: 1 attempt to save, of the last hour"));
}

TEST_CASE_METHOD(GcScene, "gc: a file that is not ours stays", "[unit][cli]") {
  given.rule.max_ckpt_num = 1;
  const std::string old = save(1);
  save(2);
  std::ofstream(old + "/notes.txt") << "mine";
  std::ofstream(dir + "/notes.txt") << "mine";
  must(collect_garbage(given));
  CHECK(names() == Names{"notes.txt", "step-000000001", "step-000000002"});
  CHECK(std::filesystem::exists(old + "/notes.txt"));
  CHECK_FALSE(std::filesystem::exists(old + "/rank-00000.safetensors"));
}

TEST_CASE_METHOD(GcScene, "gc: a directory of no job is refused", "[unit][cli]") {
  save(1);
  const auto text_of = [&](const std::string& path) {
    given.dir = path;
    const auto refused = collect_garbage(given);
    REQUIRE_FALSE(refused);
    return refused.error().message();
  };
  CHECK_THAT(text_of(""), Contains("name the directory"));
  CHECK_THAT(text_of(dir + "/missing"), Contains("there is no such directory"));
  CHECK_THAT(text_of(dir + "/latest"), Contains("it is a file"));
  CHECK_THAT(text_of(directory.path()), Contains("not the directory of a job"));
  CHECK_THAT(text_of(dir + "/step-000000001"), Contains("not the directory of a job"));
  for (const std::string& path : {std::string(directory.path()), dir + "/step-000000001"}) {
    given.dir = path;
    CHECK(collect_garbage(given).error().code() == Errc::invalid_argument);
  }
}

TEST_CASE_METHOD(GcScene, "gc: a file of the run that is lost or damaged is named with a way out",
                 "[unit][cli]") {
  for (const std::uint64_t step : {1, 2, 3}) save(step);
  const Names all = names();
  const auto refusal = [&] {
    const auto refused = collect_garbage(given);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == Errc::corruption);
    CHECK(names() == all);
    return refused.error().message();
  };
  const std::string history = dir + "/.libckpt/timelines.json";
  std::ofstream(history) << "x";
  CHECK_THAT(refusal(), Contains("timelines.json: it is cut off") &&
                            Contains("restore a step by its number once"));
  std::filesystem::remove(history);
  CHECK_THAT(refusal(),
             Contains(history + " is missing: which steps a restore has abandoned is not known") &&
                 Contains("bring it back from a copy") && !Contains("there is none"));
  const std::string marker = dir + "/.libckpt/run.json";
  std::ofstream(marker) << "x";
  CHECK_THAT(refusal(), Contains("run.json: it is cut off") && Contains("it never changes: bring"));
  std::filesystem::remove(marker);
  CHECK_THAT(refusal(), Contains("3 checkpoints") && Contains("copy it along"));
}

TEST_CASE_METHOD(GcScene, "gc: abandoned steps go first, and never count as the good one",
                 "[unit][cli]") {
  for (const std::uint64_t step : {1, 2, 3}) save(step);
  store_history({{1, {}}, {2, test::step_id(1)}});
  given.rule.max_ckpt_num = 1;
  given.dry_run = true;
  CHECK_THAT(must(collect_garbage(given)).text,
             Contains("first `ckpt cp " + dir + "/step-00000000"));
  given.dry_run = false;
  const Outcome outcome = must(collect_garbage(given));
  CHECK_THAT(outcome.text, Contains("abandoned by a restore") && !Contains("ckpt cp"));
  CHECK(names() == Names{"step-000000001"});
  std::ifstream log(dir + "/.libckpt/log.jsonl");
  const std::string lines{std::istreambuf_iterator<char>(log), {}};
  CHECK_THAT(lines, Contains("\"ckpt gc: abandoned by a restore to an older step; only the newest "
                             "is kept\""));
}

}  // namespace ckpt::cli
