// Goal:   what an engine says of storage to tools is what is there: no step that somebody removed,
// no
//         step that another daemon has abandoned, and a place that cannot be reached is named.
// Method: engines on one disk in memory, which changes behind their backs; then status and recover.
#include <nlohmann/json.hpp>

#include "unit/node/two_steps.hpp"

using Catch::Contains;

namespace ckpt::node {
namespace {

using nlohmann::json;

struct Answers {
  json status;  // Of the job.
  json recover;
};

Answers ask(test::OneRank& rank) {
  const Time deadline = rank.clock.after(std::chrono::seconds(3));
  auto looked = test::start(rank.context, rank.engine->look_at_storage(deadline));
  REQUIRE(test::finish(rank.clock, looked));
  return {json::parse(rank.engine->status_json()).at("jobs").at(0),
          json::parse(rank.engine->recover_json("job"))};
}

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

// Steps 1 and 2 are stored, and 3 is in memory alone.
void begin(test::OneRank& rank) {
  rank.begin_and_store_two_steps();
  rank.request.save_storage_interval = {};
  rank.engine->detach(rank.session);
  rank.granted.clear();
  const auto restored = rank.restore();
  REQUIRE(restored);
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  rank.capture(Step{3});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{3}; }));
}

}  // namespace

TEST_CASE("storage look: what is there is said, and nothing is in trouble", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  begin(rank);
  const Answers answers = ask(rank);
  CHECK(answers.status.at("storage_reached") == true);
  CHECK(answers.status.at("durable").at("step") == 2);
  CHECK(answers.status.at("degraded").is_null());
  CHECK(answers.status.at("if_node_died").at(0).at("resumes_from").at("step") == 2);
  CHECK(answers.recover.at("chosen").at("step") == 3);
  // A trainer's own question waits for nothing.
  rank.clock.advance(std::chrono::seconds(5));
  CHECK(json::parse(rank.engine->status_json()).at("jobs").at(0).at("storage_reached").is_null());
}

TEST_CASE("storage look: a step that somebody removed is promised to nobody", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  begin(rank);
  SECTION("the newest") {
    disk.erase("/scratch/job/step-000000002");
    const Answers answers = ask(rank);
    CHECK(answers.status.at("durable").at("step") == 1);
    CHECK(answers.status.at("if_node_died").at(0).at("resumes_from").at("step") == 1);
    CHECK_THAT(text_of(answers.status.at("degraded")),
               Contains("step 2 was stored in /scratch/job, and is not there any more"));
  }
  SECTION("all, with the directory") {
    disk.erase("/scratch/job");
    const Answers answers = ask(rank);
    CHECK(answers.status.at("durable").is_null());
    CHECK(answers.status.at("if_node_died").at(0).at("resumes_from").is_null());
    CHECK(answers.recover.at("candidates").size() >= 1);
    CHECK(answers.recover.at("chosen").at("step") == 3);
  }
  CHECK(rank.committed == Step{3});
}

// The job knows of step 3 only when its publication has ended, and a look comes before.
TEST_CASE("storage look: a step that `ckpt gc` removed where a newer one is there is no trouble",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  disk.set_latency(std::chrono::milliseconds(10), std::chrono::milliseconds(10));
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  rank.capture(Step{3});
  REQUIRE(rank.pass_until([&] { return disk.exists("/scratch/job/step-000000003"); }));
  disk.erase("/scratch/job/step-000000002");
  const Answers answers = ask(rank);
  REQUIRE(rank.durable == Step{2});
  CHECK(answers.status.at("durable").at("step") == 3);
  CHECK(answers.status.at("degraded").is_null());
}

TEST_CASE("storage look: a place that is not reached is named, and is not empty", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  begin(rank);
  std::string trouble;
  SECTION("it fails") {
    disk.set_hook([](std::string_view verb, const std::string& path) {
      return verb == "list" && path.starts_with("/scratch/job") ? EIO : 0;
    });
    trouble = "Input/output error";
  }
  SECTION("it hangs") {
    disk.set_latency(std::chrono::seconds(100), std::chrono::seconds(100));
    trouble = "it does not answer";
  }
  const Time begin = rank.clock.now();
  const Answers answers = ask(rank);
  CHECK(rank.clock.now() - begin <= std::chrono::seconds(3));
  CHECK(answers.status.at("storage_reached") == false);
  CHECK(answers.status.at("durable").at("step") == 2);  // When it was seen last.
  CHECK_THAT(text_of(answers.status.at("degraded")),
             Contains("/scratch/job was not reached: ") && Contains(trouble));
  CHECK(answers.recover.at("chosen").at("step") == 3);
  CHECK_THAT(text_of(answers.recover.at("reason")),
             Contains("/scratch/job was not reached: ") && Contains(trouble));
}

TEST_CASE("storage look: all say the same of steps that another daemon has given up",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  begin(rank);
  {
    test::OneRank other(disk);
    const auto restored = other.restore();
    REQUIRE(restored);
    REQUIRE(*restored == Step{2});
  }
  const char* const why =
      "step 3 in memory is not one to go on from any more: another daemon has begun timeline 3 of "
      "this job in the same directory, from step 2";
  const Answers answers = ask(rank);
  CHECK_THAT(text_of(answers.status.at("degraded")), Contains(why));
  CHECK(answers.status.at("if_node_died").at(0).at("resumes_from").at("step") == 2);
  CHECK(answers.recover.at("chosen").at("step") == 2);
  CHECK_THAT(text_of(answers.recover.at("reason")), Contains(why));
  // The look changes nothing: the step is still in memory, and training goes on.
  CHECK(json::parse(rank.engine->status_json()).at("jobs").at(0).at("committed").at("step") == 3);

  rank.engine->detach(rank.session);
  rank.granted.clear();
  const auto restored = rank.restore();
  REQUIRE(restored);
  CHECK(*restored == Step{2});
  CHECK_THAT(rank.answer->reason, Contains(why));
  // It is said once: the next restore is of a timeline that gave nothing up.
  rank.engine->detach(rank.session);
  REQUIRE(rank.restore());
  CHECK_THAT(rank.answer->reason, !Contains("not one to go on from"));
}

}  // namespace ckpt::node
