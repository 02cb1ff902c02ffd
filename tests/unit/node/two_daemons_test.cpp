// Goal:   two daemons that know nothing of each other, and begin the same job on one directory at
//         one moment, begin two timelines: no step of one passes for a step of the other.
// Method: engines on one disk in memory; another one runs, as a whole, in the middle of a file
//         operation of the first.
#include <nlohmann/json.hpp>

#include "format/run_files.hpp"
#include "node/lent_step.hpp"
#include "unit/node/two_steps.hpp"

namespace ckpt::node {
namespace {

const std::string private_directory = "/scratch/job/.libckpt/";

std::uint64_t restored_timeline(test::OneRank& rank) {
  const auto restored = rank.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  REQUIRE(*restored == Step{2});
  return rank.answer->timeline;
}

std::vector<std::string> claims(const test::MemoryDisk& disk) {
  std::vector<std::string> found;
  for (const std::string& path : disk.tree()) {
    if (path.starts_with(private_directory + "timeline-")) found.push_back(path);
  }
  return found;
}

bool is_recorded(const test::MemoryDisk& disk, std::uint64_t timeline) {
  const auto stored = format::parse_timelines(disk.content(private_directory + "timelines.json"));
  REQUIRE(stored);
  return std::any_of(stored->history.begin(), stored->history.end(),
                     [&](const format::TimelineStart& it) { return it.timeline == timeline; });
}

// A daemon that goes on in timeline 2, while another one has begun timeline 3.
struct Overtaken {
  Overtaken() {
    disk.put_directory("/scratch");
    test::save_two_steps(disk);
    older = std::make_unique<test::OneRank>(disk);
    newer = std::make_unique<test::OneRank>(disk);
    for (test::OneRank* rank : {older.get(), newer.get()})
      rank->request.save_storage_interval.steps = 1;
    CHECK(restored_timeline(*older) == 2);
    CHECK(restored_timeline(*newer) == 3);
  }
  void capture_in_vain() const {
    REQUIRE(older->pass_until([&] { return !older->granted.empty(); }));
    older->capture(Step{3});
    REQUIRE(older->pass_until([&] {
      return older->notice.degraded.find(
                 "abandoned by timeline 3, which another daemon has "
                 "begun") != std::string::npos;
    }));
  }

  test::MemoryDisk disk{1};
  std::unique_ptr<test::OneRank> older, newer;
};

}  // namespace

TEST_CASE("two daemons: two that begin at once have their own timelines", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::save_two_steps(disk);
  std::string interrupted;
  int others = 1;
  SECTION("before its claim is made") {
    interrupted = "timeline-2";
  }
  SECTION("before its claim is made, and others have removed theirs") {
    interrupted = "timeline-2";
    others = 3;
  }
  SECTION("before its timeline is recorded") {
    interrupted = "timelines.json";
  }
  std::vector<std::uint64_t> timelines;
  std::unique_ptr<test::OneRank> last;
  disk.set_hook([&](std::string_view verb, const std::string& path) {
    if (verb != "rename" || !path.ends_with(private_directory + interrupted)) return 0;
    if (!timelines.empty()) return 0;
    for (int other = 1; other <= others; ++other) {
      if (last) close(*last);
      last = std::make_unique<test::OneRank>(disk);
      timelines.push_back(0);
      timelines.back() = restored_timeline(*last);
    }
    return 0;
  });
  test::OneRank rank(disk);
  const std::uint64_t ours = restored_timeline(rank);
  REQUIRE(timelines.size() == static_cast<std::size_t>(others));
  CAPTURE(ours, timelines);
  CHECK(std::find(timelines.begin(), timelines.end(), ours) == timelines.end());

  test::OneRank& newest = ours > timelines.back() ? rank : *last;
  newest.request.save_storage_interval.steps = 1;
  newest.capture(Step{3});
  REQUIRE(newest.pass_until([&] { return newest.committed == Step{3}; }));
  close(newest);
  for (const std::uint64_t timeline : {ours, timelines.back()}) CHECK(is_recorded(disk, timeline));
  // The daemon with the newest timeline goes on. The next one restores its steps.
  test::OneRank next(disk);
  const auto restored = next.restore();
  REQUIRE((restored ? "" : restored.error().message()) == "");
  CHECK(*restored == Step{3});
  CHECK(next.answer->timeline > std::max(ours, timelines.back()));
  next.pass_until([&] { return claims(disk).size() == 1; });
  CHECK(claims(disk) == std::vector<std::string>{private_directory + "timeline-" +
                                                 std::to_string(next.answer->timeline)});
}

TEST_CASE("two daemons: the one whose timeline was abandoned publishes nothing, and says why",
          "[unit][node]") {
  Overtaken scene;
  scene.capture_in_vain();
  test::OneRank& older = *scene.older;
  test::OneRank& newer = *scene.newer;
  CHECK(older.committed == Step{3});  // Its memory serves it all the same.
  CHECK(older.durable == Step{2});
  CHECK_FALSE(scene.disk.exists("/scratch/job/step-000000003"));

  REQUIRE(newer.pass_until([&] { return !newer.granted.empty(); }));
  newer.capture(Step{3});
  REQUIRE(newer.pass_until([&] { return newer.durable == Step{3}; }));

  // It does not wait for its deadline to close: no time brings its step to storage.
  const Time begin = older.clock.now();
  REQUIRE(older.engine->call(older.session, control::Close{std::chrono::hours(1)}));
  REQUIRE(older.pass_until([&] { return older.end.has_value(); }));
  CHECK(older.clock.now() - begin < std::chrono::minutes(1));
  REQUIRE_FALSE(*older.end);
  CHECK_THAT(older.end->error().message(), Catch::Contains("which another daemon has begun"));
}

// All tell the same: that no waiting helps, and what does.
TEST_CASE("two daemons: all that the refused one says names the way out", "[unit][node]") {
  const std::string way_out =
      "`ckpt cp memory:job PLACE` saves the newest one elsewhere, before a trainer starts again";
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::save_two_steps(disk);
  test::OneRank older(disk);
  older.request.save_storage_interval.steps = 1;
  CHECK(restored_timeline(older) == 2);
  test::OneRank newer(disk);
  CHECK(restored_timeline(newer) == 3);
  REQUIRE(older.pass_until([&] { return !older.granted.empty(); }));
  older.capture(Step{3});
  const auto job_status = [&] {
    return nlohmann::json::parse(older.engine->status_json()).at("jobs").at(0);
  };
  REQUIRE(older.pass_until([&] { return job_status().at("storage_refuses") == true; }));
  CHECK_THAT(older.notice.degraded, Catch::Contains(way_out));
  CHECK_THAT(job_status().at("degraded").get<std::string>(), Catch::Contains(way_out));

  // A flush before the end does not use up its time, and not even the pause before the next try.
  const Time begin = older.clock.now();
  auto flush = test::start(older.context, older.engine->flush(std::chrono::minutes(5), 100));
  const Status flushed = test::finish(older.clock, flush);
  REQUIRE_FALSE(flushed);
  CHECK_THAT(flushed.error().message(), Catch::Contains(way_out));
  CHECK(older.clock.now() - begin < std::chrono::seconds(2));
  const auto lent = older.engine->lend("job", std::nullopt);
  REQUIRE((lent ? "" : lent.error().message()) == "");
  CHECK((*lent)->description().at.step == Step{3});

  REQUIRE(older.engine->call(older.session, control::Close{std::chrono::hours(1)}));
  REQUIRE(older.pass_until([&] { return older.end.has_value(); }));
  REQUIRE_FALSE(*older.end);
  CHECK_THAT(older.end->error().message(),
             Catch::Contains("in memory alone") && Catch::Contains(way_out));
}

TEST_CASE("two daemons: what is wrong with the directory alone is no refusal", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.begin_and_store_two_steps();
  int tries = 0;
  disk.set_hook([&](std::string_view verb, const std::string& path) {
    if (verb != "rename" || !path.ends_with("/step-000000003")) return 0;
    ++tries;
    return ENOTDIR;  // An invalid argument, as a bucket that is not there.
  });
  rank.capture(Step{3});
  REQUIRE(rank.pass_until([&] { return tries >= 4; }));
  const auto job = nlohmann::json::parse(rank.engine->status_json()).at("jobs").at(0);
  CHECK(job.at("storage_refuses") == false);
  auto flush = test::start(rank.context, rank.engine->flush(std::chrono::hours(1), 100));
  disk.set_hook({});
  const Status flushed = test::finish(rank.clock, flush);
  CHECK((flushed ? "" : flushed.error().message()) == "");
  CHECK(rank.durable == Step{3});
}

TEST_CASE("two daemons: a refusal holds for the steps of its timeline, and no longer",
          "[unit][node]") {
  Overtaken scene;
  scene.newer.reset();
  scene.capture_in_vain();
  test::OneRank& older = *scene.older;
  older.clock.advance(std::chrono::minutes(3));  // The pauses between its tries are long by now.

  older.engine->detach(older.session);
  older.granted.clear();
  CHECK(restored_timeline(older) == 4);
  older.clock.advance(std::chrono::seconds(1));
  CHECK(older.notice.degraded.empty());
  const Time begin = older.clock.now();
  REQUIRE(older.pass_until([&] { return !older.granted.empty(); }));
  older.capture(Step{3});
  REQUIRE(older.engine->call(older.session, control::Close{std::chrono::hours(1)}));
  REQUIRE(older.pass_until([&] { return older.end.has_value(); }));
  CHECK((*older.end ? "" : older.end->error().message()) == "");
  CHECK(older.clock.now() - begin < std::chrono::seconds(10));
  CHECK(scene.disk.exists("/scratch/job/step-000000003/manifest.json"));
}

TEST_CASE("two daemons: a vote knows what the other has abandoned, however slowly storage answers",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank older(disk);
  older.begin_and_store_two_steps();
  test::OneRank newer(disk);
  REQUIRE(newer.attach());
  REQUIRE(newer.engine->call(newer.session, control::AskRestore{1, Step{1}}));
  REQUIRE(newer.pass_until([&] { return newer.answer.has_value(); }));
  REQUIRE(newer.answer->restored);

  disk.set_latency(std::chrono::seconds(1), std::chrono::seconds(1));  // Longer than a heartbeat.
  older.answer.reset();
  REQUIRE(older.engine->call(older.session, control::AskRestore{2, std::nullopt}));
  REQUIRE(older.pass_until([&] { return older.answer.has_value(); }));
  REQUIRE(older.answer->restored);
  CHECK(older.answer->restored->step == Step{1});
}

TEST_CASE("two daemons: a claim that cannot be made holds nobody up", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::save_two_steps(disk);
  disk.set_hook([](std::string_view verb, const std::string& path) {
    return verb == "rename" && path.find(private_directory + "timeline-") != std::string::npos ? EIO
                                                                                               : 0;
  });
  test::OneRank rank(disk);
  CHECK(restored_timeline(rank) > 2);  // Nobody else may have it: it is far from the next one.
}

}  // namespace ckpt::node
