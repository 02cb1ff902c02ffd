// Goal:   an engine that flushes before its end loses nothing that it took meanwhile, takes nothing
//         that it would lose, and goes on as before where storage fails.
// Method: one trainer on a slow disk in memory captures while the flush is under way, and after it;
//         a disk without space fails the flush, and gets its space back; of two nodes one loses its
//         part of the step.
#include <cerrno>

#include "unit/node/one_rank.hpp"
#include "unit/node/worlds.hpp"

namespace ckpt::node {
namespace {

constexpr Duration deadline = std::chrono::seconds(60);
constexpr std::uint32_t failures_max = 2;

struct CommittedStep {
  CommittedStep() : disk(1), rank(with_directory(disk)) {
    REQUIRE(rank.begin_fresh());
    rank.capture(Step{1});
    REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  }
  static test::MemoryDisk& with_directory(test::MemoryDisk& disk) {
    disk.put_directory("/scratch");
    return disk;
  }
  test::Pending<void> flush() {
    return test::start(rank.context, rank.engine->flush(deadline, failures_max));
  }
  test::MemoryDisk disk;
  test::OneRank rank;
};

// Two nodes, of which one has lost its rank's part of step 1.
struct LostPart : test::Cluster {
  LostPart() {
    test::Rules rules{.directory = "/scratch/job", .replicas = 1};
    rules.verify_every = std::chrono::seconds(1);
    begin("AB", rules);
    commit(Step{1});
    damage(1);
    const Time verified_at = now() + 3 * rules.verify_every;
    REQUIRE(pass_until([&] { return now() > verified_at; }));
  }
};

}  // namespace

TEST_CASE("flush before the end: steps captured meanwhile are flushed too", "[unit][node]") {
  CommittedStep scene;
  test::OneRank& rank = scene.rank;
  scene.disk.set_latency(std::chrono::milliseconds(5), std::chrono::milliseconds(20));
  const std::size_t granted = rank.granted.size();
  REQUIRE(granted >= 3);
  auto flushed = scene.flush();
  const auto operations = scene.disk.operations();
  REQUIRE(rank.pass_until([&] { return scene.disk.operations() > operations + 3; }));
  rank.capture(Step{2});
  REQUIRE(rank.begin_capture(Step{3}));
  rank.clock.advance(std::chrono::seconds(5));
  REQUIRE_FALSE(flushed.is_done());  // It waits for the capture that is under way.
  REQUIRE(rank.end_capture(Step{3}));
  const Status done = test::finish(rank.clock, flushed);
  REQUIRE((done ? "" : done.error().message()) == "");
  REQUIRE(scene.disk.exists("/scratch/job/step-000000003/manifest.json"));
  REQUIRE(rank.engine->held_json().find("\"lost\":null") != std::string::npos);

  // No Slot was granted meanwhile, and one that was before serves no more.
  REQUIRE(rank.granted.size() == granted - 2);
  const Status late = rank.begin_capture(Step{4});
  REQUIRE_FALSE(late);
  REQUIRE(late.error().code() == Errc::unavailable);
}

TEST_CASE("flush before the end: where storage fails it says why, and all goes on",
          "[unit][node]") {
  CommittedStep scene;
  test::OneRank& rank = scene.rank;
  scene.disk.set_hook(
      [](std::string_view verb, const std::string&) { return verb == "write" ? ENOSPC : 0; });
  const Status failed = test::finish(rank.clock, scene.flush());
  REQUIRE_FALSE(failed);
  CAPTURE(failed.error().message());
  REQUIRE(failed.error().code() == Errc::io);
  REQUIRE(failed.error().text().find("step 1 is not durable") != std::string::npos);
  REQUIRE(failed.error().text().find("No space left") != std::string::npos);
  REQUIRE(rank.engine->held_json().find("\"lost\":1") != std::string::npos);

  scene.disk.set_hook({});
  for (std::uint64_t step = 2; step <= 12; ++step) {  // More than there were Slots.
    REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
    rank.capture(Step{step});
    REQUIRE(rank.pass_until([&] { return rank.committed == Step{step}; }));
  }
  REQUIRE(test::finish(rank.clock, scene.flush()));
  REQUIRE(scene.disk.exists("/scratch/job/step-000000012/manifest.json"));
}

TEST_CASE("flush before the end: while nothing goes to storage, trainers capture", "[unit][node]") {
  CommittedStep scene;
  test::OneRank& rank = scene.rank;
  scene.disk.set_hook(
      [](std::string_view verb, const std::string&) { return verb == "write" ? ENOSPC : 0; });
  auto flushed = test::start(rank.context, rank.engine->flush(std::chrono::minutes(5), 1000));
  const Time began = rank.clock.now();
  std::uint64_t step = 1;
  while (rank.clock.now() - began < std::chrono::minutes(2)) {  // More than there were Slots.
    if (!rank.granted.empty()) rank.capture(Step{++step});
    REQUIRE(rank.clock.advance_to_next());
  }
  REQUIRE(step > 10);
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{step}; }));
  REQUIRE_FALSE(flushed.is_done());
  scene.disk.set_hook({});
  REQUIRE(test::finish(rank.clock, flushed));
  REQUIRE(rank.engine->held_json().find("\"lost\":null") != std::string::npos);
}

TEST_CASE("flush before the end: a last capture that takes long is not followed by others",
          "[unit][node]") {
  CommittedStep scene;
  test::OneRank& rank = scene.rank;
  REQUIRE(rank.begin_capture(Step{2}));
  auto flushed = scene.flush();
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{1}; }));
  const std::size_t granted = rank.granted.size();
  rank.clock.advance(std::chrono::seconds(30));
  REQUIRE_FALSE(flushed.is_done());
  REQUIRE(rank.granted.size() == granted);
  REQUIRE(rank.end_capture(Step{2}));
  REQUIRE(test::finish(rank.clock, flushed));
}

TEST_CASE("flush before the end: a newer step takes the place of one that lost a part",
          "[unit][node]") {
  // Found by a job in rough weather: it captured nothing until the deadline of the stop.
  LostPart cluster;
  auto flushed = cluster.begin_task(cluster.engine("A").flush(std::chrono::minutes(5), 1000));
  test::Trainer& first = cluster.rank(0);
  std::uint64_t step = 1;
  while (!first.granted.empty()) {
    cluster.capture(first, Step{++step});
    REQUIRE(cluster.rank(1).engine->call(cluster.rank(1).session, control::Skipped{Step{step}}));
  }
  REQUIRE(cluster.pass_until([&] { return !first.granted.empty(); }));
  REQUIRE_FALSE(flushed.is_done());
  cluster.commit(Step{step + 1});
  REQUIRE(cluster.end_task(flushed));
  REQUIRE(first.durable == Step{step + 1});
}

TEST_CASE("flush before the end: a job that is let go meanwhile is waited for no longer",
          "[unit][node]") {
  test::Cluster cluster;
  cluster.begin("AB", {.directory = "/scratch/job"});
  cluster.commit(Step{1});
  test::Trainer& first = cluster.rank(0);
  cluster.capture(first, Step{2});  // Rank 1 may still do so, too.
  auto flushed = cluster.begin_task(cluster.engine("A").flush(std::chrono::minutes(5), 1000));
  REQUIRE(cluster.pass_until([&] { return first.durable == Step{1}; }));
  REQUIRE_FALSE(flushed.is_done());
  first.engine->detach(first.session);
  REQUIRE(first.engine->drop("job"));
  const Status done = cluster.end_task(flushed);
  REQUIRE((done ? "" : done.error().message()) == "");
}

TEST_CASE("flush before the end: without trainers a step that lost a part is not waited for",
          "[unit][node]") {
  LostPart cluster;
  cluster.end_world();
  const std::string node = GENERATE("A", "B");  // A coordinates.
  const Time began = cluster.now();
  const Status failed = cluster.run(cluster.engine(node).flush(std::chrono::minutes(5), 1000));
  REQUIRE_FALSE(failed);
  CAPTURE(failed.error().message());
  CHECK(failed.error().code() == Errc::unavailable);
  CHECK(failed.error().text().find("step 1 is not durable, no step is") != std::string::npos);
  CHECK(failed.error().text().find("step 1 cannot be stored: rank 1's part") != std::string::npos);
  CHECK(cluster.now() - began < std::chrono::minutes(1));
}

TEST_CASE("flush before the end: it can be given up at any time", "[unit][node]") {
  CommittedStep scene;
  test::OneRank& rank = scene.rank;
  scene.disk.set_hook(
      [](std::string_view verb, const std::string&) { return verb == "write" ? ENOSPC : 0; });
  auto flushed = test::start(rank.context, rank.engine->flush(deadline, 1000));
  rank.clock.advance(std::chrono::seconds(5));
  REQUIRE_FALSE(flushed.is_done());
  rank.engine->give_up_flush();
  rank.clock.advance(Duration::zero());
  REQUIRE(flushed.is_done());
  const Status failed = test::finish(rank.clock, flushed);
  REQUIRE_FALSE(failed);
  REQUIRE(failed.error().text().find("step 1 is not durable") != std::string::npos);
}

TEST_CASE("flush before the end: without any step it says so in words", "[unit][node]") {
  test::MemoryDisk disk(1);
  test::OneRank rank(CommittedStep::with_directory(disk));
  std::string standing = "a capture is under way, and no step is durable";
  if (GENERATE(false, true)) {
    rank.begin_and_store_two_steps();
    standing = "a capture is under way, and step 2 is durable";
  } else {
    REQUIRE(rank.begin_fresh());
  }
  REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
  REQUIRE(rank.begin_capture(Step{3}));  // It never ends.
  const Status failed = test::finish(
      rank.clock, test::start(rank.context, rank.engine->flush(deadline, failures_max)));
  REQUIRE_FALSE(failed);
  CHECK(failed.error().message().find("flush job job: " + standing) != std::string::npos);
}

TEST_CASE("flush before the end: without a directory it says what is lost", "[unit][node]") {
  test::MemoryDisk disk(1);
  test::OneRank rank(disk);
  rank.request.dir.clear();
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  REQUIRE(test::finish(rank.clock,
                       test::start(rank.context, rank.engine->flush(deadline, failures_max))));
  REQUIRE(rank.engine->held_json().find("\"lost\":1") != std::string::npos);
}

TEST_CASE("flush before the end: an engine with nothing to do ends before the next heartbeat",
          "[unit][node]") {
  CommittedStep scene;
  test::OneRank& rank = scene.rank;
  rank.engine->detach(rank.session);
  rank.clock.poll();
  const Time before = rank.clock.now();
  REQUIRE(test::finish(rank.clock, test::start(rank.context, rank.engine->stop(deadline))));
  REQUIRE(rank.clock.now() - before < EngineOptions().heartbeat_interval / 10);
}

}  // namespace ckpt::node
