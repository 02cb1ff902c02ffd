// Goal:   `ckpt ls` and `verify` show both places of a job, also when one of them is damaged or
//         gone.
// Method: a run on the real disk, with copies of a step in a second directory.
#include <filesystem>
#include <fstream>

#include "cli/commands.hpp"
#include "storage/copy.hpp"
#include "unit/cli/stored_run.hpp"

namespace ckpt::cli {
namespace {

using Catch::Contains;

struct Both : StoredRun {
  Both() {
    save(1);
    save(2);
    storage::CopyOrder order;
    order.sources.push_back(must(workplace.run(storage::OpenStep::in(site(), "step-000000002"))));
    order.manifest = order.sources.front().manifest();
    order.timelines = std::make_shared<const format::Timelines>(
        must(workplace.run(storage::load_timelines(site(), test::test_run))));
    const storage::Site target(workplace.files(), workplace.clock(), far);
    must(workplace.run(storage::copy_checkpoint(target, std::move(order))));
  }

  std::string far = directory.file("far");
  std::string both = dir + ", " + far + " every 10";
};

}  // namespace

TEST_CASE("cli places: ls lists each place", "[unit][cli]") {
  const Both run;
  const auto listed = list(run.both);
  REQUIRE(listed);
  CHECK_FALSE(listed->is_trouble);
  REQUIRE(listed->json["places"].size() == 2);
  CHECK(listed->json["places"][0]["directory"] == run.dir);
  CHECK(listed->json["places"][0]["checkpoints"].size() == 2);
  CHECK(listed->json["places"][1]["directory"] == run.far);
  CHECK(listed->json["places"][1]["checkpoints"].size() == 1);
  CHECK_THAT(listed->text, Contains(run.dir + ":") && Contains(run.far + ":"));
}

TEST_CASE("cli places: verify reads each copy", "[unit][cli]") {
  const Both run;
  const auto good = verify(run.both, false);
  REQUIRE(good);
  CHECK(good->json["good"] == true);
  run.damage(run.far + "/step-000000002/rank-00000.safetensors");
  const auto bad = verify(run.both, false);
  REQUIRE(bad);
  CHECK(bad->is_trouble);
  CHECK(bad->json["places"][0]["good"] == true);
  CHECK(bad->json["places"][1]["good"] == false);
}

TEST_CASE("cli places: ls and verify take a parent of runs", "[unit][cli]") {
  Both run;
  const std::string parent = run.directory.path().string();
  const auto listed = list(parent);
  REQUIRE(listed);
  REQUIRE(listed->json["runs"].size() == 2);
  CHECK(listed->json["runs"][0]["directory"] == run.far);
  CHECK(listed->json["runs"][1]["checkpoints"].size() == 2);
  CHECK_THAT(listed->text, Contains(run.dir + ":") && Contains(run.far + ":"));
  CHECK(verify(parent + "/", false)->json["good"] == true);
  run.damage(run.far + "/step-000000002/rank-00000.safetensors");
  const auto bad = verify(parent, false);
  REQUIRE(bad);
  CHECK(bad->is_trouble);
  CHECK(bad->json["runs"][0]["good"] == false);
  CHECK(bad->json["runs"][1]["good"] == true);
  CHECK(verify(run.dir + "/step-000000002", false)->json["checkpoints"].size() == 1);
}

TEST_CASE("cli places: each line of a parent's verdict names its run", "[unit][cli]") {
  Both run;
  for (const std::string& where : {run.dir, run.far}) {
    std::filesystem::permissions(where + "/step-000000002/manifest.json",
                                 std::filesystem::perms::owner_all);
    std::ofstream(where + "/step-000000002/manifest.json") << "{";
  }
  const auto bad = verify(run.directory.path().string(), false);
  REQUIRE(bad);
  CHECK(bad->is_trouble);
  for (const std::string& where : {run.dir, run.far})
    CHECK_THAT(bad->text, Contains("DAMAGED " + where + "/step-000000002: "));
}

TEST_CASE("cli places: a run inside a run is listed and verified, and not made", "[unit][cli]") {
  Both run;
  const std::string inner = run.dir + "/inner";
  std::filesystem::copy(run.far, inner, std::filesystem::copy_options::recursive);
  const auto listed = list(run.dir);
  REQUIRE(listed);
  REQUIRE(listed->json["runs"].size() == 2);
  CHECK(listed->json["runs"][0]["directory"] == run.dir);
  CHECK(listed->json["runs"][1]["directory"] == inner);
  run.damage(inner + "/step-000000002/rank-00000.safetensors");
  const auto verified = verify(run.dir, false);
  REQUIRE(verified);
  CHECK(verified->is_trouble);
  CHECK_THAT(verified->text, Contains("DAMAGED " + inner + "/step-000000002"));
  CHECK(list(run.directory.path().string())->json["runs"].size() == 3);
  // A run above others hides them from commands that take a parent.
  CopyOptions above;
  above.from = run.far;
  above.to = run.directory.path().string();
  above.json = true;
  const auto refused = copy(above);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == Errc::invalid_argument);
  CHECK_THAT(refused.error().text(), Contains("other runs lie below it (far)"));
  ImportOptions imported;
  imported.from = {run.far + "/step-000000002/rank-00000.safetensors"};
  imported.to = above.to;
  imported.json = true;
  const auto unmade = import_tensors(imported);
  REQUIRE_FALSE(unmade);
  CHECK_THAT(unmade.error().text(), Contains("other runs lie below it (far)"));
}

TEST_CASE("cli places: ls of one checkpoint shows it", "[unit][cli]") {
  Both run;
  const std::string step = run.dir + "/step-000000001";
  for (const std::string& path : {step, step + "/"}) {
    const auto listed = list(path);
    REQUIRE(listed);
    CHECK_FALSE(listed->is_trouble);
    REQUIRE(listed->json["checkpoints"].size() == 1);
    CHECK(listed->json["checkpoints"][0]["name"] == "step-000000001");
    CHECK(listed->json["checkpoints"][0]["abandoned"] == false);
    CHECK_THAT(listed->text, Contains("step-000000001") && Contains("published"));
  }
  run.store_history({{1, {}}, {2, test::step_id(0)}});
  CHECK(list(step)->json["checkpoints"][0]["abandoned"] == true);
  CHECK_FALSE(list(step)->is_trouble);
}

TEST_CASE("cli places: a file in place of a directory is called one", "[unit][cli]") {
  Both run;
  const std::string file = run.dir + "/step-000000001/manifest.json";
  for (const auto& told : {list(file), verify(file, false)}) {
    REQUIRE_FALSE(told);
    CHECK(told.error().code() == Errc::invalid_argument);
    CHECK_THAT(told.error().message(), Contains(file + ": it is a file"));
  }
}

TEST_CASE("cli places: commands that read take the copy in the other place, then an older step",
          "[unit][cli]") {
  Both run;
  const auto read = [&](const std::string& from) -> std::string {
    CopyOptions order;
    order.from = from;
    order.to = run.directory.file("copy-" + std::to_string(++run.attempts));
    order.json = true;
    const auto copied = copy(order);
    return copied ? copied->json["from"].get<std::string>() : copied.error().message();
  };
  const std::string first = run.dir + "/step-000000002", second = run.far + "/step-000000002";
  CHECK(read(run.both) == first);
  run.damage(first + "/rank-00001.safetensors");
  CHECK(read(run.both) == second);
  CHECK(inspect({run.both, "", {}, false})->json["directory"] ==
        first);  // Its description is whole.
  run.damage(first + "/rank-00001.part", 30);
  CHECK(inspect({run.both, "", {}, false})->json["directory"] == second);
  run.damage(second + "/rank-00000.safetensors");
  CHECK(read(run.both) == first);  // With what is good of the other one: see below.
  run.damage(second + "/rank-00001.safetensors");
  CHECK(read(run.both) == run.dir + "/step-000000001");
  CHECK_THAT(read(first), Contains("rank-00001"));  // Named itself, nothing stands for it.
}

TEST_CASE("cli places: copies that are damaged in different chunks give one good step",
          "[unit][cli]") {
  Both run;
  const std::string first = run.dir + "/step-000000002", second = run.far + "/step-000000002";
  const auto exported = [&](const std::string& from, const std::string& to) {
    ExportOptions order;
    order.path = from;
    order.out = run.directory.file(to);
    order.format = "safetensors";
    order.rank = 1;
    order.json = true;
    return export_tensors(order);
  };
  const auto content = [&](const std::string& name) {
    std::ifstream file(run.directory.file(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto whole = exported(run.both, "whole");
  REQUIRE(whole);
  CHECK_FALSE(whole->is_trouble);
  CHECK(whole->json["newer_damaged"] == false);
  SECTION("both in the same file") {
    run.damage(first + "/rank-00001.safetensors", 4200);
    run.damage(second + "/rank-00001.safetensors", 5000 + 4096);
  }
  SECTION("in parts, and in the files of other ranks") {
    run.damage(first + "/rank-00000.part", 30);
    run.damage(second + "/rank-00001.part", 30);
    run.damage(second + "/rank-00001.safetensors");
  }
  SECTION("one of them lacks a file, so that it is no checkpoint") {
    std::filesystem::remove(first + "/rank-00000.safetensors");
    run.damage(second + "/rank-00001.safetensors");
  }
  const auto joined = exported(run.both, "joined");
  REQUIRE((joined ? "" : joined.error().message()) == "");
  CHECK_FALSE(joined->is_trouble);
  CHECK(joined->json["step"] == 2);
  CHECK(content("joined") == content("whole"));
  CopyOptions order;
  order.from = run.both;
  order.to = run.directory.file("copied");
  order.json = true;
  const auto copied = copy(order);
  REQUIRE((copied ? "" : copied.error().message()) == "");
  CHECK_FALSE(copied->is_trouble);
  CHECK(verify(order.to + "/step-000000002", false)->json["good"] == true);
  CHECK(exported(order.to, "of the copy"));
  CHECK(content("of the copy") == content("whole"));
  // Bytes that are good nowhere make it an older step, and that is said.
  for (const std::string& path : {first, second})
    run.damage(path + "/rank-00001.safetensors", 4096 + 100);
  const auto older = exported(run.both, "older");
  REQUIRE(older);
  CHECK(older->json["step"] == 1);
  CHECK(older->json["newer_damaged"] == true);
  CHECK(older->is_trouble);
  CHECK_THAT(older->text, Contains("This is not the newest step"));
}

TEST_CASE("cli places: diff keeps a step that is put together, and passes over the damaged one",
          "[unit][cli]") {
  Both run;
  const std::string third = run.directory.file("third");
  std::filesystem::copy(run.dir, third, std::filesystem::copy_options::recursive);
  run.damage(run.dir + "/step-000000002/rank-00000.safetensors");
  run.damage(run.far + "/step-000000002/rank-00001.safetensors");
  DiffOptions order;
  order.one = run.both;
  order.other = third;
  const auto same = diff(order);
  REQUIRE((same ? "" : same.error().message()) == "");
  CHECK(same->json["equal"] == true);
  CHECK(same->json["newer_damaged"] == false);
  run.damage(third + "/step-000000002/rank-00000.safetensors");
  for (const bool is_swapped : {false, true}) {
    if (is_swapped) std::swap(order.one, order.other);
    const auto older = diff(order);
    REQUIRE((older ? "" : older.error().message()) == "");
    CHECK(older->json[is_swapped ? "second" : "first"]["step"] == 2);
    CHECK(older->json[is_swapped ? "first" : "second"]["step"] == 1);
    CHECK(older->json["newer_damaged"] == true);
    CHECK(older->is_trouble);
  }
}

TEST_CASE("cli places: a damaged step that a restore has abandoned is no trouble", "[unit][cli]") {
  Both run;
  std::filesystem::remove(run.dir + "/step-000000002/rank-00000.safetensors");
  const InspectOptions order{run.dir, "", {}, false};
  CHECK(inspect(order)->json["newer_damaged"] == true);
  CHECK(inspect(order)->is_trouble);
  run.store_history({{1, {}}, {2, test::step_id(1)}});
  CHECK(inspect(order)->json["newer_damaged"] == false);
  CHECK_FALSE(inspect(order)->is_trouble);
}

TEST_CASE("cli places: nothing is copied into itself", "[unit][cli]") {
  Both run;
  const std::string link = run.directory.file("link");
  std::filesystem::create_directory_symlink(run.dir, link);
  const auto before = run.names();
  const auto refusal = [&](const std::string& from, const std::string& to) {
    CopyOptions order;
    order.from = from;
    order.to = to;
    order.json = true;
    const auto copied = copy(order);
    REQUIRE_FALSE(copied);
    CHECK(copied.error().code() == Errc::invalid_argument);
    return copied.error().text();
  };
  const std::string step = run.dir + "/step-000000001";
  for (const std::string& from : {run.dir, step, link, link + "/step-000000001"}) {
    for (const std::string& to : {run.dir, link, run.dir + "/../run/"})
      CHECK_THAT(refusal(from, to), Contains("it lies there already"));
    for (const std::string& to : {run.dir + "/new", link + "/new", run.dir + "/a/../new/deeper"})
      CHECK_THAT(refusal(from, to), Contains("lies inside the run that is copied"));
  }
  for (const std::string& to : {run.dir + "/new", run.far + "/new"})
    CHECK_THAT(refusal(run.both, to), Contains("lies inside the run that is copied"));
  CHECK_THAT(refusal(step, step), Contains("lies inside the checkpoint that is copied"));
  CHECK_THAT(refusal(step, step + "/new"), Contains("lies inside the checkpoint that is copied"));
  CHECK(run.names() == before);
  // A checkpoint that lies alone has no run around it.
  const std::string alone = run.directory.file("alone");
  std::filesystem::create_directory(alone);
  std::filesystem::copy(step, alone + "/step-000000001");
  CopyOptions order;
  order.from = alone + "/step-000000001";
  order.to = alone + "/run";
  order.json = true;
  CHECK(copy(order));
}

TEST_CASE("cli places: a path without a bucket is told what it lacks", "[unit][cli]") {
  for (const auto& told : {list("s3://"), verify("s3://", false)}) {
    REQUIRE_FALSE(told);
    CHECK(told.error().code() == Errc::invalid_argument);
    CHECK_THAT(told.error().text(),
               Contains("s3://: it names no bucket: write s3://BUCKET/PREFIX"));
  }
}

TEST_CASE("cli places: metrics of a save are shown", "[unit][cli]") {
  StoredRun run;
  run.save(1, 0.0625);
  const auto listed = list(run.dir);
  REQUIRE(listed);
  CHECK(listed->json["checkpoints"][0]["metrics"]["loss"] == 0.0625);
  CHECK_THAT(listed->text, Contains("METRICS") && Contains("loss=0.0625"));
  const auto inspected = inspect({run.dir, "", {}, false});
  REQUIRE(inspected);
  CHECK(inspected->json["metrics"]["loss"] == 0.0625);
  CHECK_THAT(inspected->text, Contains("metrics: loss=0.0625"));
  run.save(2);
  CHECK(inspect({run.dir, "", {}, false})->json["metrics"].empty());
}

TEST_CASE("cli places: links and renamed steps are misplaced, and not damaged", "[unit][cli]") {
  Both run;
  std::filesystem::rename(run.dir + "/step-000000002", run.dir + "/step-000000009");
  std::filesystem::create_directory_symlink(run.far + "/step-000000002",
                                            run.dir + "/step-000000002");
  const auto listed = list(run.dir);
  REQUIRE(listed);
  CHECK(listed->is_trouble);
  CHECK_THAT(listed->text, Contains("MISPLACED step-000000002: it is a symbolic link") &&
                               Contains("MISPLACED step-000000009: its manifest is of step 2") &&
                               !Contains("DAMAGED step-"));
  for (const auto& each : listed->json["rejected"]) {
    INFO(each.dump());
    CHECK(each["misplaced"] == each["name"].get<std::string>().starts_with("step-"));
  }
  const auto repaired = repair({run.dir, run.far});
  REQUIRE(repaired);
  CHECK_THAT(repaired->text, Contains("left as it is " + run.dir + "/step-000000002: ") &&
                                 Contains("put it in its place by hand"));
}

TEST_CASE("cli places: a place that is gone hides nothing of the other one", "[unit][cli]") {
  const Both run;
  std::filesystem::remove_all(run.dir);
  const auto listed = list(run.both);
  REQUIRE(listed);
  CHECK(listed->is_trouble);
  CHECK_THAT(listed->text, Contains("there is no such directory") && Contains("step-000000002"));
  const auto verified = verify(run.both, true);
  REQUIRE(verified);
  CHECK(verified->is_trouble);
  CHECK(verified->json["places"][1]["good"] == true);
}

}  // namespace ckpt::cli
