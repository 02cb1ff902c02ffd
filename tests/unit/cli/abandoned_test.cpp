// Goal:   a whole step that a restore has abandoned is called that before it is deleted, and a copy
// of
//         it alone is one that a job goes on from.
// Method: a run on the real disk whose history leaves its newest step out.
#include <filesystem>
#include <fstream>

#include "cli/commands.hpp"
#include "format/sealed_json.hpp"
#include "unit/cli/stored_run.hpp"

namespace ckpt::cli {

namespace {

using Catch::Contains;

class AbandonedScene : public StoredRun {
 public:
  AbandonedScene() {
    older = save(1);
    newest = save(2);
    std::filesystem::copy(dir, good, std::filesystem::copy_options::recursive);
    store_history({{1, {}}, {2, test::step_id(1)}});
  }
  format::Timelines timelines_in(const std::string& path) {
    const storage::Site there(workplace.files(), workplace.clock(), path);
    return must(workplace.run(storage::load_timelines(there, test::test_run)));
  }

  std::string older, newest;
  std::string good = directory.file("good");
  std::string saved = directory.file("saved");
};

}  // namespace

TEST_CASE_METHOD(AbandonedScene, "cli abandoned: a repaired step is whole, and still abandoned",
                 "[unit][cli]") {
  const std::string advice = "`ckpt cp " + newest + " ELSEWHERE`";
  damage(newest + "/rank-00000.safetensors");
  CHECK_THAT(must(verify(dir, false)).text, !Contains(advice));
  const bool is_named = GENERATE(false, true);
  const Outcome outcome = must(repair({is_named ? newest : dir, good}));
  CHECK_FALSE(outcome.is_trouble);
  CHECK_THAT(outcome.text, Contains("repaired " + newest + ": rank-00000.safetensors") &&
                               Contains("whole, but abandoned by a restore to an older step") &&
                               Contains("the next deletion takes it first") && Contains(advice));
  CHECK(outcome.json["checkpoints"].back()["abandoned"] == true);
  CHECK(outcome.json["checkpoints"].back()["good"] == true);
  const Outcome verified = must(verify(dir, false));
  CHECK_FALSE(verified.is_trouble);
  CHECK_THAT(verified.text, Contains(advice) && !Contains("`ckpt cp " + older));
  CHECK(verified.json["checkpoints"][0]["abandoned"] == false);
}

TEST_CASE_METHOD(AbandonedScene, "cli abandoned: a copy of it alone is the newest step there",
                 "[unit][cli]") {
  for (const bool was_there : {false, true}) {
    const Outcome copied = must(copy_to(newest, saved));
    CHECK(copied.json["was_there"] == was_there);
    CHECK(copied.json["abandoned"] == false);
    CHECK(copied.json["source_abandoned"] == true);
    CHECK_THAT(copied.text, Contains("is the newest step there"));
    CHECK(list(saved)->json["newest"] == "step-000000002");
    // The next timeline is a later one than the step's own.
    CHECK(timelines_in(saved).history == std::vector<format::TimelineStart>{{1, {}}});
  }
  CHECK(list(dir)->json["newest"] == "step-000000001");
}

TEST_CASE_METHOD(AbandonedScene, "cli abandoned: a copy of it brings a damaged marker back",
                 "[unit][cli]") {
  const std::string marker = dir + "/.libckpt/run.json";
  damage(marker, 20);
  REQUIRE_FALSE(list(dir)->text.find("DAMAGED .libckpt/run.json") == std::string::npos);
  CHECK(must(copy_to(newest, saved)).json["source_abandoned"] == true);  // The history counts.
  std::filesystem::copy_file(saved + "/.libckpt/run.json", marker,
                             std::filesystem::copy_options::overwrite_existing);
  const Outcome listed = must(list(dir));
  CHECK_FALSE(listed.is_trouble);
  CHECK(listed.json["newest"] == "step-000000001");
}

TEST_CASE_METHOD(AbandonedScene, "cli abandoned: beside other steps a copy stays abandoned",
                 "[unit][cli]") {
  store_history({{1, {}}});
  must(copy_to(older, saved));
  store_history({{1, {}}, {2, test::step_id(1)}});
  const Outcome copied = must(copy_to(newest, saved));
  CHECK(copied.json["abandoned"] == true);
  CHECK_THAT(copied.text, Contains("name the copy itself"));
  CHECK(list(saved)->json["newest"] == "step-000000001");
  CHECK(timelines_in(saved) == timelines_in(dir));
}

TEST_CASE_METHOD(AbandonedScene, "cli abandoned: an interrupted copy of it alone goes on",
                 "[unit][cli]") {
  must(copy_to(newest, saved));
  std::filesystem::remove_all(saved + "/step-000000002");  // The history is written before it.
  CHECK(must(copy_to(newest, saved)).json["abandoned"] == false);
  CHECK(list(saved)->json["newest"] == "step-000000002");
}

TEST_CASE_METHOD(AbandonedScene, "cli abandoned: a second one leaves a lone copy the newest",
                 "[unit][cli]") {
  store_history({{1, {}}});
  const std::string second = save(3);
  store_history({{1, {}}, {2, test::step_id(1)}});
  must(copy_to(newest, saved));
  const auto refused = copy_to(second, saved);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  CHECK_THAT(refused.error().text(),
             Contains("step-000000002 there would be abandoned") && Contains("another directory"));
  CHECK(timelines_in(saved).history == std::vector<format::TimelineStart>{{1, {}}});
  CHECK(list(saved)->json["newest"] == "step-000000002");
  // Beside a step that lives it is one of many, as in its run.
  const Outcome beside = must(copy_to(older, saved));
  CHECK(beside.json["abandoned"] == false);
  CHECK(beside.json["abandoned_there"] == Json{"step-000000002"});
  CHECK_THAT(beside.text, Contains("step-000000002 there is abandoned from now on"));
  const Outcome third = must(copy_to(second, saved));
  CHECK(third.json["abandoned"] == true);
  CHECK(third.json["abandoned_there"].empty());
}

TEST_CASE_METHOD(AbandonedScene, "cli abandoned: a copy that fails leaves a lone one the newest",
                 "[unit][cli]") {
  must(copy_to(newest, saved));
  const auto file = "/rank-00000.safetensors";
  SECTION("its bytes are bad") {
    damage(older + file);
  }
  SECTION("something else is there") {
    std::filesystem::create_directory(saved + "/step-000000001");
    std::ofstream(saved + "/step-000000001" + file) << "no checkpoint";
  }
  REQUIRE_FALSE(copy_to(older, saved));
  CHECK(timelines_in(saved).history == std::vector<format::TimelineStart>{{1, {}}});
  CHECK(list(saved)->json["newest"] == "step-000000002");
}

TEST_CASE_METHOD(AbandonedScene, "cli abandoned: a damaged copy of it alone is replaced by itself",
                 "[unit][cli]") {
  must(copy_to(newest, saved));
  damage(saved + "/step-000000002/manifest.json", 40);
  const auto refused = copy_to(newest, saved);
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().text(), Contains("mv " + saved + "/step-000000002 ELSEWHERE"));
  std::filesystem::rename(saved + "/step-000000002", directory.file("away"));
  CHECK(must(copy_to(newest, saved)).json["abandoned"] == false);
}

TEST_CASE_METHOD(AbandonedScene, "cli abandoned: it is, also from inside its own directory",
                 "[unit][cli]") {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(newest);
  const Outcome here = must(verify(".", false));
  const Outcome above = must(verify("..", false));
  std::filesystem::current_path(older);
  const Outcome living = must(verify("./", false));
  std::filesystem::current_path(before);
  CHECK(here.json["checkpoints"][0]["abandoned"] == true);
  CHECK_THAT(here.text, Contains("abandoned by a restore to an older step"));
  CHECK(above.json["checkpoints"].size() == 2);
  CHECK(living.json["checkpoints"][0]["abandoned"] == false);
  CHECK(must(verify(newest + "/.", false)).json["checkpoints"][0]["abandoned"] == true);
}

TEST_CASE_METHOD(StoredRun, "cli abandoned: a renamed step is misplaced, also by its own name",
                 "[unit][cli]") {
  const std::string renamed = dir + "/step-000000009";
  save(1);
  std::filesystem::copy(dir, directory.file("good"), std::filesystem::copy_options::recursive);
  std::filesystem::rename(dir + "/step-000000001", renamed);
  const Outcome verified = must(verify(renamed, false));
  CHECK(verified.is_trouble);
  CHECK(verified.json["good"] == false);
  CHECK(verified.json["checkpoints"][0]["misplaced"] == true);
  CHECK_THAT(verified.text, Contains("MISPLACED " + renamed + ": its manifest is of step 1"));
  CHECK_THAT(must(verify(renamed + "/.", false)).text, Contains("MISPLACED"));
  const Outcome repaired = must(repair({renamed, directory.file("good") + "/step-000000001"}));
  CHECK(repaired.is_trouble);
  CHECK_THAT(repaired.text, Contains("left as it is " + renamed + ": ") &&
                                Contains("put it in its place by hand"));
  // A name of another kind says nothing of a step.
  std::filesystem::rename(renamed, dir + "/aside");
  CHECK_FALSE(must(verify(dir + "/aside", false)).is_trouble);
}

TEST_CASE_METHOD(StoredRun, "cli abandoned: a damaged manifest is brought back by hand and a copy",
                 "[unit][cli]") {
  const std::string step = save(1), good = directory.file("good");
  std::filesystem::copy(dir, good, std::filesystem::copy_options::recursive);
  damage(step + "/manifest.json", 40);
  const Outcome told = must(repair({dir, good}));
  CHECK(told.is_trouble);
  CHECK_THAT(told.text, Contains("mv " + step + " ELSEWHERE") &&
                            Contains("`ckpt cp " + good + "/step-000000001 " + dir + "`"));
  CopyOptions order;
  order.from = good + "/step-000000001";
  order.to = dir;
  order.json = true;
  const auto refused = copy(order);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  CHECK_THAT(refused.error().text(), Contains("mv " + step + " ELSEWHERE"));
  std::filesystem::rename(step, directory.file("away"));
  REQUIRE(copy(order));
  CHECK_FALSE(must(verify(dir, false)).is_trouble);
}

TEST_CASE_METHOD(StoredRun,
                 "cli abandoned: what a newer version wrote is neither damaged nor moved",
                 "[unit][cli]") {
  save(1);
  const std::string step = save(2), good = directory.file("good");
  std::filesystem::copy(dir, good, std::filesystem::copy_options::recursive);
  const std::string manifest = step + "/manifest.json";
  std::filesystem::permissions(manifest, std::filesystem::perms::owner_all);
  std::ofstream(manifest) << format::seal_json(format::begin_sealed_json("libckpt-manifest", 99));
  const bool is_named = GENERATE(false, true);
  const Outcome told = must(repair({is_named ? step : dir, good}));
  CHECK(told.is_trouble);
  CHECK_THAT(told.text, Contains("with the version of libckpt that wrote it") &&
                            Contains("UNREADABLE " + step) && !Contains("DAMAGED") &&
                            !Contains("ELSEWHERE"));
  CHECK_THAT(list(dir)->text, Contains("UNREADABLE step-000000002"));
  CHECK(list(dir)->json["rejected"][0]["damaged"] == false);
}

}  // namespace ckpt::cli
