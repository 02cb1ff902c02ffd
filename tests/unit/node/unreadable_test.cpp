// Goal:   a step on storage that may not be read, or cannot, is never passed over in silence, nor
//         deleted, nor replaced; the job goes on without it only where somebody says so.
// Method: engines, one after another, on one disk in memory, which refuses a directory or a file of
//         the newest step.
#include <nlohmann/json.hpp>

#include "format/run_files.hpp"
#include "unit/node/two_steps.hpp"

namespace ckpt::node {
namespace {

using test::newest_of_two;

const std::string history_of_job = "/scratch/job/.libckpt/timelines.json";

struct Refusal {
  Refusal() : disk(1) {
    disk.put_directory("/scratch");
    test::save_two_steps(disk);
  }
  void refuse(const std::string& file, int error) {
    disk.set_hook([file, error](std::string_view verb, const std::string& path) {
      const bool is_below = file.empty() && path.starts_with(newest_of_two + "/");
      const bool is_directory = file.empty() && path == newest_of_two && verb == "list";
      const bool is_file = !file.empty() && path == newest_of_two + "/" + file && verb != "status";
      return is_below || is_directory || is_file ? error : 0;
    });
  }
  void refuse_history(int error) {
    disk.set_hook([error](std::string_view verb, const std::string& path) {
      return path == history_of_job && verb == "read" ? error : 0;
    });
  }
  test::MemoryDisk disk;
};

struct RefusedTrainer : test::OneRank {
  explicit RefusedTrainer(Refusal& refusal) : OneRank(refusal.disk) {
    request.save_storage_interval.steps = 1;
    request.max_ckpt_num = 1;
  }
  // Of that step alone.
  void ask(std::optional<Step> step) {
    answer.reset();
    REQUIRE(engine->call(session, control::AskRestore{1, step}));
    REQUIRE(pass_until([this] { return answer.has_value(); }));
  }
  nlohmann::json steps() const {
    return nlohmann::json::parse(engine->status_json())["jobs"][0]["steps"];
  }
  nlohmann::json if_node_died() const {
    return nlohmann::json::parse(engine->status_json())["jobs"][0]["if_node_died"][0];
  }
  std::string degraded() const {
    const auto status = nlohmann::json::parse(engine->status_json())["jobs"][0]["degraded"];
    return status.is_null() ? "" : status.get<std::string>();
  }
};

}  // namespace

TEST_CASE("unreadable: a restore refuses, and says what, why and what helps", "[unit][node]") {
  Refusal refusal;
  const std::string file = GENERATE("", "manifest.json", "rank-00000.safetensors");
  const int error = GENERATE(EACCES, EPERM, EIO, ESTALE);
  if (error == EIO && file.starts_with("rank-")) return;  // That is damage: see below.
  CAPTURE(file, error);
  refusal.refuse(file, error);
  const std::string before = refusal.disk.content(newest_of_two + "/rank-00000.safetensors");
  {
    RefusedTrainer trainer(refusal);
    const auto restored = trainer.restore();
    REQUIRE_FALSE(restored);
    CHECK(restored.error().code() == Errc::io);
    const std::string text = restored.error().message();
    CAPTURE(text);
    CHECK(text.find("step 2 on storage could not be read, and may be good") != std::string::npos);
    CHECK(text.find("restore step 1 by its number") != std::string::npos);
    CHECK(text.find(newest_of_two) != std::string::npos);
    const bool names_user = text.find("as user id ") != std::string::npos;
    CHECK(names_user == (error == EACCES || error == EPERM));
  }
  {
    // A user who names the older one gets it, and the newer one stays as it was.
    RefusedTrainer trainer(refusal);
    REQUIRE(trainer.attach());
    trainer.ask(Step{1});
    REQUIRE((trainer.answer->result ? "" : trainer.answer->result.error().message()) == "");
    REQUIRE(trainer.answer->restored->step == Step{1});
    for (const std::uint64_t step : {3, 4, 5}) {
      REQUIRE(trainer.pass_until([&] { return !trainer.granted.empty(); }));
      trainer.capture(Step{step});
      REQUIRE(trainer.pass_until([&] { return trainer.durable == Step{step}; }));
    }
    CHECK(trainer.degraded().find("step-000000002 in /scratch/job cannot be read and is kept") !=
          std::string::npos);
    CHECK_FALSE(refusal.disk.exists("/scratch/job/step-000000001"));
    CHECK_FALSE(refusal.disk.exists("/scratch/job/step-000000003"));
    CHECK_FALSE(refusal.disk.exists("/scratch/job/step-000000004"));
    CHECK(refusal.disk.exists("/scratch/job/step-000000005"));
  }
  CHECK(refusal.disk.content(newest_of_two + "/rank-00000.safetensors") == before);
}

TEST_CASE("unreadable: a file that the disk has lost is passed over as a damaged one, and is kept",
          "[unit][node]") {
  Refusal refusal;
  refusal.refuse("rank-00000.safetensors", EIO);
  RefusedTrainer trainer(refusal);
  REQUIRE(trainer.restore().value() == Step{1});
  CHECK(trainer.answer->reason.find(format::repair_advice) != std::string::npos);
  CHECK(refusal.disk.exists(newest_of_two + "/rank-00000.safetensors"));
}

TEST_CASE("unreadable: what may be read again is restored", "[unit][node]") {
  Refusal refusal;
  refusal.refuse(GENERATE("", "rank-00000.safetensors"), EACCES);
  RefusedTrainer trainer(refusal);
  REQUIRE_FALSE(trainer.restore());
  refusal.disk.set_hook({});
  trainer.answer.reset();
  REQUIRE(trainer.engine->call(trainer.session, control::AskRestore{2, std::nullopt}));
  REQUIRE(trainer.pass_until([&] { return trainer.answer.has_value(); }));
  REQUIRE((trainer.answer->result ? "" : trainer.answer->result.error().message()) == "");
  CHECK(trainer.answer->restored->step == Step{2});
  CHECK_FALSE(trainer.is_wrong);
}

TEST_CASE("damaged: what was repaired is restored by the next trainer", "[unit][node]") {
  Refusal damage;
  const std::string older = "/scratch/job/step-000000001";
  const auto flip_both = [&] {
    for (const std::string& step : {older, newest_of_two}) {
      const std::string file = step + "/rank-00000.safetensors";
      damage.disk.flip(file, damage.disk.content(file).size() - 1, 2);
    }
  };
  flip_both();
  RefusedTrainer trainer(damage);
  const auto ask_anew = [&] {
    trainer.engine->detach(trainer.session);
    return trainer.restore();
  };
  auto restored = trainer.restore();
  REQUIRE_FALSE(restored);
  CHECK(restored.error().code() == Errc::corruption);
  trainer.engine->detach(trainer.session);
  const auto loss = trainer.if_node_died();
  CHECK(loss["resumes_from"].is_null());
  CHECK(loss["is_damaged"] == true);
  // The newest: that was read. It is one truth with what is said of it above.
  CHECK(trainer.steps()[0]["step"] == 2);
  CHECK(trainer.steps()[0]["damaged_there"] == true);
  CHECK(trainer.steps()[0]["on_storage"] == false);
  CHECK(trainer.steps()[0]["level"] != "durable");
  restored = trainer.restore();  // Still damaged: found again.
  REQUIRE_FALSE(restored);
  CHECK(restored.error().code() == Errc::corruption);
  CHECK(restored.error().message().find("2 checkpoints on storage are damaged") !=
        std::string::npos);
  flip_both();  // The same bits again: they are good.
  restored = ask_anew();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{2});
  CHECK_FALSE(trainer.is_wrong);
  CHECK(trainer.steps()[0]["damaged_there"] == false);
  CHECK(trainer.steps()[0]["on_storage"] == true);
}

TEST_CASE("damaged: a restore that was cut short hands on what it found", "[unit][node]") {
  Refusal damage;
  const std::string file = newest_of_two + "/rank-00000.safetensors";
  damage.disk.flip(file, damage.disk.content(file).size() - 1, 2);
  RefusedTrainer trainer(damage);
  trainer.keeps_offers = true;
  REQUIRE(trainer.attach());
  REQUIRE(trainer.engine->call(trainer.session, control::AskRestore{1, std::nullopt}));
  REQUIRE(trainer.pass_until([&] { return !trainer.offers.empty(); }));
  trainer.engine->detach(trainer.session);
  trainer.keeps_offers = false;
  // Good again. But nobody reads it: with many damaged steps that would take each restore's time.
  damage.disk.flip(file, damage.disk.content(file).size() - 1, 2);
  CHECK(trainer.restore().value() == Step{1});
}

TEST_CASE("unreadable: a history of timelines that cannot be read is not lost, and is not replaced",
          "[unit][node]") {
  Refusal refusal;
  const int error = GENERATE(EACCES, EPERM, EIO, ESTALE);
  CAPTURE(error);
  refusal.refuse_history(error);
  const std::string before = refusal.disk.content(history_of_job);
  RefusedTrainer trainer(refusal);
  REQUIRE(trainer.attach());
  const auto is_refused = [&] {
    REQUIRE_FALSE(trainer.answer->result);
    CHECK(trainer.answer->result.error().code() == Errc::io);
    const std::string text = trainer.answer->result.error().message();
    CAPTURE(text);
    CHECK(text.find(history_of_job) != std::string::npos);
    CHECK(text.find("make it readable") != std::string::npos);
    CHECK(text.find("lost") == std::string::npos);
    const bool names_user = text.find("as user id ") != std::string::npos;
    CHECK(names_user == (error == EACCES || error == EPERM));
    CHECK(refusal.disk.content(history_of_job) == before);
  };
  trainer.ask(std::nullopt);
  is_refused();
  trainer.ask(Step{1});  // Its timeline would have to be recorded.
  is_refused();
  trainer.answer.reset();
  REQUIRE(trainer.engine->call(trainer.session, control::StartFresh{2}));
  REQUIRE(trainer.pass_until([&] { return trainer.answer.has_value(); }));
  is_refused();

  refusal.disk.set_hook({});
  trainer.ask(std::nullopt);
  REQUIRE((trainer.answer->result ? "" : trainer.answer->result.error().message()) == "");
  CHECK(trainer.answer->restored->step == Step{2});
  const auto stored = format::parse_timelines(refusal.disk.content(history_of_job));
  REQUIRE(stored);
  REQUIRE(stored->history.size() == 2);  // The first run's is in it.
  CHECK(trainer.answer->timeline == stored->history.back().timeline);
}

TEST_CASE("unreadable: a job that knows its history goes on, and stores when it can be read again",
          "[unit][node]") {
  Refusal refusal;
  RefusedTrainer trainer(refusal);
  REQUIRE(trainer.restore().value() == Step{2});
  refusal.refuse_history(EACCES);
  const std::string before = refusal.disk.content(history_of_job);
  trainer.ask(std::nullopt);  // From memory, in a timeline that cannot be recorded yet.
  REQUIRE((trainer.answer->result ? "" : trainer.answer->result.error().message()) == "");
  REQUIRE(trainer.answer->restored->step == Step{2});
  REQUIRE(trainer.pass_until([&] { return !trainer.granted.empty(); }));
  trainer.capture(Step{3});
  REQUIRE(trainer.pass_until([&] { return !trainer.degraded().empty(); }));
  CHECK_THAT(trainer.degraded(),
             Catch::Contains("a history that cannot be read") && Catch::Contains(history_of_job));
  CHECK(refusal.disk.content(history_of_job) == before);
  CHECK(refusal.disk.exists(newest_of_two));
  CHECK_FALSE(refusal.disk.exists("/scratch/job/step-000000003"));

  refusal.disk.set_hook({});
  REQUIRE(trainer.pass_until([&] { return trainer.durable == Step{3}; }));
  const auto stored = format::parse_timelines(refusal.disk.content(history_of_job));
  REQUIRE(stored);
  CHECK(stored->history.back().timeline == trainer.answer->timeline);
}

TEST_CASE("unreadable: nobody begins anew beside it", "[unit][node]") {
  Refusal refusal;
  refusal.disk.erase("/scratch/job/step-000000001");
  refusal.refuse("", EACCES);
  RefusedTrainer trainer(refusal);
  const auto restored = trainer.restore();
  REQUIRE_FALSE(restored);
  CHECK(restored.error().code() == Errc::io);
  CHECK(restored.error().message().find("start_fresh()") != std::string::npos);
}

TEST_CASE("damaged: the older step that is restored for it is not stored again, and it stays",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::save_two_steps(disk);
  const std::string file = newest_of_two + "/rank-00000.safetensors";
  disk.flip(file, disk.content(file).size() - 1, 2);
  disk.clear_log();
  test::OneRank trainer(disk);
  trainer.request.save_storage_interval.steps = 1;
  trainer.request.max_ckpt_num = 2;
  REQUIRE(trainer.restore().value() == Step{1});
  CHECK(trainer.answer->reason.find(format::repair_advice) != std::string::npos);
  if (GENERATE(false, true)) {  // The next trainer of this daemon does not look at it again.
    trainer.engine->detach(trainer.session);
    trainer.granted.clear();
    REQUIRE(trainer.restore().value() == Step{1});
  }
  const auto store = [&](std::uint64_t step) {
    REQUIRE(trainer.pass_until([&] { return !trainer.granted.empty(); }));
    trainer.capture(Step{step});
    REQUIRE(trainer.pass_until([&] { return trainer.durable == Step{step}; }));
  };
  store(3);
  CHECK(std::ranges::none_of(disk.log(), [](const std::string& line) {
    return line.find(".step-000000001.") != std::string::npos;  // Its work directory.
  }));
  CHECK(disk.exists(file));  // Until two newer ones are good.
  store(4);
  CHECK_FALSE(disk.exists(file));
  CHECK(disk.exists("/scratch/job/step-000000003"));
}

}  // namespace ckpt::node
