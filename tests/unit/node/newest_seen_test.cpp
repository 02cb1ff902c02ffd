// Goal:   a daemon remembers how far training had come when its trainer dies, so that a restore
//         says how many steps were lost.
// Method: trainers of one rank, driven by hand, die between captures, in one, and before the first;
//         the answer to each restore is looked at. In a cluster the node that saw most is lost.
#include "support/captured_log.hpp"
#include "unit/node/one_rank.hpp"
#include "unit/node/worlds.hpp"

namespace ckpt::node {
namespace {

struct Watched {
  Watched() : disk(1), rank(disk) {
    disk.put_directory("/scratch");
    REQUIRE(rank.begin_fresh());
    rank.capture(Step{10});
    REQUIRE(rank.pass_until([&] { return rank.committed == Step{10}; }));
  }

  void come_to(std::uint64_t step) {
    REQUIRE(rank.engine->call(rank.session, control::Passed{Step{step}}));
  }
  void die() {
    rank.engine->detach(rank.session);
    rank.granted.clear();
  }
  // After a restore by a new trainer.
  std::optional<Step> newest_seen() {
    REQUIRE(rank.restore().value() == Step{10});
    return rank.answer->newest_seen;
  }

  test::MemoryDisk disk;
  test::OneRank rank;
};

}  // namespace

TEST_CASE_METHOD(Watched, "newest seen: a trainer that dies right after a save loses nothing",
                 "[unit][node]") {
  die();
  CHECK(newest_seen() == Step{10});
}

TEST_CASE_METHOD(Watched, "newest seen: steps that were passed, skipped or half captured are lost",
                 "[unit][node]") {
  come_to(12);
  SECTION("passed") {
    die();
    CHECK(newest_seen() == Step{12});
  }
  SECTION("skipped") {
    REQUIRE(rank.engine->call(rank.session, control::Skipped{Step{13}}));
    die();
    CHECK(newest_seen() == Step{13});
  }
  SECTION("half captured") {
    REQUIRE(rank.begin_capture(Step{14}));
    die();
    CHECK(newest_seen() == Step{14});
  }
  SECTION("the same trainer asks") {
    rank.answer.reset();
    REQUIRE(rank.engine->call(rank.session, control::AskRestore{2, std::nullopt}));
    come_to(99);  // It does not train.
    REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
    CHECK(rank.answer->newest_seen == Step{12});
  }
}

TEST_CASE_METHOD(Watched, "newest seen: a passed step is no capture that is given up",
                 "[unit][node]") {
  come_to(11);
  rank.capture(Step{11});
  CHECK(rank.pass_until([&] { return rank.committed == Step{11}; }));
}

TEST_CASE_METHOD(Watched, "newest seen: steps that an earlier death cost are not lost again",
                 "[unit][node]") {
  come_to(15);
  die();
  CHECK(newest_seen() == Step{15});
  die();
  CHECK(newest_seen() == Step{10});
  come_to(11);
  die();
  CHECK(newest_seen() == Step{11});
}

TEST_CASE_METHOD(Watched,
                 "newest seen: a step that comes before the session has begun says nothing",
                 "[unit][node]") {
  die();
  REQUIRE(rank.attach());
  come_to(99);
  die();
  CHECK(newest_seen() == Step{10});
}

TEST_CASE_METHOD(Watched, "newest seen: a trainer that looks at the step again learns the same",
                 "[unit][node]") {
  come_to(15);
  die();
  CHECK(newest_seen() == Step{15});
  const auto ask_again = [&] {
    rank.answer.reset();
    REQUIRE(rank.engine->call(rank.session, control::AskRestore{3, Step{10}}));
    REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
    return rank.answer->newest_seen;
  };
  CHECK(ask_again() == Step{15});
  CHECK(ask_again() == Step{15});
  come_to(12);
  CHECK(ask_again() == Step{12});
}

TEST_CASE("newest seen: from storage alone nobody knows", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  {
    test::OneRank rank(disk);
    rank.begin_and_store_two_steps();
    REQUIRE(rank.engine->call(rank.session, control::Passed{Step{7}}));
  }
  test::OneRank rank(disk);
  REQUIRE(rank.restore().value() == Step{2});
  CHECK_FALSE(rank.answer->newest_seen.has_value());
}

TEST_CASE("newest seen: a stored step whose manifest is damaged was reached", "[unit][node]") {
  const test::CapturedLog quiet(LogLevel::error);
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  {
    test::OneRank rank(disk);
    rank.begin_and_store_two_steps();
  }
  const std::string step = "/scratch/job/step-000000003/";
  {  // In a second timeline, as after any restart.
    test::OneRank rank(disk);
    rank.request.save_storage_interval.steps = 1;
    REQUIRE(rank.restore().value() == Step{2});
    REQUIRE(rank.pass_until([&] { return !rank.granted.empty(); }));
    rank.capture(Step{3});
    REQUIRE(rank.pass_until([&] { return rank.durable == Step{3}; }));
  }
  disk.flip(step + "manifest.json", 100, 3);
  std::optional<Step> newest = Step{3};
  SECTION("as a part says, which knows its timeline") {}
  SECTION("unless no part says so: it may be of the first timeline, and was abandoned then") {
    disk.flip(step + "rank-00000.part", 20, 3);
    newest.reset();
  }
  test::OneRank rank(disk);
  REQUIRE(rank.restore().value() == Step{2});
  CHECK(rank.answer->newest_seen == newest);
}

TEST_CASE("newest seen: any node that is left knows for all", "[unit][node]") {
  test::Cluster cluster;
  cluster.begin("ab");
  cluster.commit(Step{1});
  REQUIRE(cluster.rank(1).engine->call(cluster.rank(1).session, control::Passed{Step{3}}));
  cluster.end_world();
  cluster.lose("a");
  cluster.begin("bc");
  CHECK(cluster.rank(0).answer->restored->step == Step{1});
  CHECK(cluster.rank(0).answer->newest_seen == Step{3});
  CHECK(cluster.rank(1).answer->newest_seen == Step{3});
}

TEST_CASE("newest seen: of the ranks of a node, the one that came furthest counts",
          "[unit][node]") {
  test::Cluster cluster;
  cluster.begin("aa");
  cluster.commit(Step{1});
  REQUIRE(cluster.rank(1).engine->call(cluster.rank(1).session, control::Passed{Step{5}}));
  REQUIRE(cluster.rank(0).engine->call(cluster.rank(0).session, control::Passed{Step{4}}));
  cluster.end_world();
  cluster.begin("aa");
  CHECK(cluster.rank(0).answer->restored->step == Step{1});
  CHECK(cluster.rank(0).answer->newest_seen == Step{5});
}

}  // namespace ckpt::node
