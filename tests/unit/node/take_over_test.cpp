// Goal:   who takes the place of a trainer that is alive hears so at once, and how to read without
//         it; the older one hears of whom; the status shows it. A trainer that comes after a death,
//         or again by itself, hears nothing.
// Method: an engine with one rank; a second trainer of that rank attaches, from another process.
#include <nlohmann/json.hpp>

#include "unit/node/two_steps.hpp"

using Catch::Contains;

namespace ckpt::node {
namespace {

struct Older : test::OneRank {
  using OneRank::OneRank;
  void tell(control::Event event) override {
    if (const auto* fenced = std::get_if<control::Fenced>(&event)) reason = fenced->reason;
    OneRank::tell(std::move(event));
  }
  std::string reason;
};

struct Scene {
  Scene() {
    disk.put_directory("/scratch");
    older.emplace(disk);
    older->request.process = 17;
  }
  void attach_newer(std::int64_t process, std::int64_t killed = 0) {
    AttachRequest request = older->request;
    request.process = process;
    request.killed = killed;
    newer = test::Rank();
    auto attached = test::finish(
        older->clock, test::start(older->context, older->engine->attach(request, newer)));
    REQUIRE(attached);
    newer.session = attached->session;
    older->clock.advance(std::chrono::seconds(1));
  }
  nlohmann::json taken_over() const {
    return nlohmann::json::parse(older->engine->status_json()).at("jobs").at(0).at("taken_over");
  }

  test::MemoryDisk disk{1};
  test::Rank newer;  // The engine calls it until it ends.
  std::optional<Older> older;
};

}  // namespace

TEST_CASE("take over: both trainers hear who takes whose place", "[unit][node]") {
  Scene scene;
  REQUIRE(scene.older->begin_fresh());
  scene.older->capture(Step{4});
  REQUIRE(scene.older->pass_until([&] { return scene.older->committed == Step{4}; }));
  scene.older->clock.advance(std::chrono::seconds(3));
  scene.attach_newer(18);
  CHECK_THAT(
      scene.newer.notice.degraded,
      Contains("this process, pid 18, takes the place of pid 17, which is alive and captured "
               "step 4 3.") &&
          Contains("libckpt.load_checkpoint(\"/scratch/job\")"));
  CHECK_THAT(scene.older->reason, Contains("attached, pid 18: no later step of this process, pid "
                                           "17, is captured") &&
                                      Contains("libckpt.load_checkpoint"));
  const auto taken = scene.taken_over();
  REQUIRE(taken.size() == 1);
  CHECK(taken[0].at("rank") == 0);
  CHECK(taken[0].at("older_process") == 17);
  CHECK(taken[0].at("newer_process") == 18);
  CHECK(taken[0].at("captured") == 4);
  CHECK(taken[0].at("seconds_ago") == 1);

  // As trouble it passes; the status shows it until a trainer comes in nobody's place.
  scene.older->clock.advance(std::chrono::minutes(1));
  CHECK(scene.newer.notice.degraded.empty());
  CHECK(scene.taken_over().size() == 1);
  scene.older->engine->detach(scene.newer.session);
  CHECK(scene.taken_over().size() == 1);
  scene.attach_newer(19);
  CHECK(scene.newer.notice.degraded.empty());
  CHECK(scene.taken_over().empty());
}

TEST_CASE("take over: one that closes is not taken for a training", "[unit][node]") {
  Scene scene;
  REQUIRE(scene.older->begin_fresh());
  close(*scene.older);
  scene.attach_newer(18);
  CHECK(scene.newer.notice.degraded.empty());
  CHECK(scene.taken_over().empty());
}

TEST_CASE("take over: a job in memory alone names the way to store what it holds", "[unit][node]") {
  Scene scene;
  scene.older->request.dir.clear();
  REQUIRE(scene.older->attach());
  scene.attach_newer(18);
  CHECK_THAT(scene.newer.notice.degraded, Contains("is alive and has captured no step") &&
                                              Contains("`ckpt cp memory:job PLACE`"));
}

TEST_CASE("take over: ranks that the job has no more hear of the newcomer, too", "[unit][node]") {
  Scene scene;
  scene.older->request.world_size = 2;
  scene.older->request.rank = 1;
  REQUIRE(scene.older->attach());
  scene.older->clock.advance(std::chrono::seconds(1));
  CHECK(scene.older->notice.degraded.empty());
  scene.older->request.world_size = 1;
  scene.older->request.rank = 0;
  scene.attach_newer(18);
  CHECK_THAT(scene.older->notice.degraded,
             Contains("attached to job job, and with 1 rank: no later step of rank 1 is captured"));
  CHECK(scene.newer.notice.degraded.empty());
}

TEST_CASE("take over: the newer one hears that a stopped one was killed", "[unit][node]") {
  Scene scene;
  scene.older->request.world_size = 2;  // The job does not end with this rank.
  REQUIRE(scene.older->attach());
  scene.older->engine->detach(scene.older->session);
  scene.attach_newer(18, 17);
  CHECK_THAT(scene.newer.notice.degraded,
             Contains("pid 18, took the place of pid 17, which was stopped (SIGSTOP, Ctrl-Z) and "
                      "was killed"));
  CHECK(scene.taken_over().empty());  // Nothing trains on beside it.
  scene.older->clock.advance(std::chrono::minutes(1));
  CHECK(scene.newer.notice.degraded.empty());
}

TEST_CASE("take over: nobody's place is taken after a death, or by the same process",
          "[unit][node]") {
  Scene scene;
  scene.older->request.world_size = 2;  // The job does not end with this rank.
  REQUIRE(scene.older->attach());
  std::int64_t process = 18;
  SECTION("after a death") {
    scene.older->engine->detach(scene.older->session);
  }
  SECTION("after an end whose session is still reported") {
    REQUIRE(
        scene.older->engine->call(scene.older->session, control::Close{std::chrono::seconds(60)}));
    scene.older->engine->detach(scene.older->session);
  }
  SECTION("by the same process") {
    process = 17;
  }
  scene.attach_newer(process);
  CHECK(scene.newer.notice.degraded.empty());
  CHECK(scene.taken_over().empty());
  CHECK(scene.older->reason.empty());
}

}  // namespace ckpt::node
