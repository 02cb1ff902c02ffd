// Goal:   trainers that begin anew in mid-training get a new timeline, in which any step may come;
//         all of them do, or none; and a restore serves what they trained last.
// Method: a trainer of one rank with a disk in memory; two hosts without memory for what ranks
//         agree on.
#include <fmt/format.h>

#include "unit/node/hosts.hpp"
#include "unit/node/one_rank.hpp"

namespace ckpt::node {
namespace {

void begin_anew(test::OneRank& rank) {
  const std::uint64_t before = rank.answer->timeline;
  rank.answer.reset();
  rank.captured = rank.committed = rank.durable = Step{};
  REQUIRE(rank.engine->call(rank.session, control::StartFresh{2, false, true}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value() && rank.granted.size() >= 2; }));
  REQUIRE(rank.answer->result);
  CHECK_FALSE(rank.answer->restored);
  CHECK(rank.answer->timeline > before);
}

}  // namespace

TEST_CASE("begun anew: lower steps are captured, stored, and restored", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  bool is_memory_lost = GENERATE(false, true);
  CAPTURE(is_memory_lost);
  const auto train = [](test::OneRank& rank) {
    rank.request.save_storage_interval.steps = 1;
    REQUIRE(rank.begin_fresh());
    for (const std::uint64_t step : {8, 9}) {
      rank.capture(Step{step});
      REQUIRE(rank.pass_until([&] { return rank.durable == Step{step}; }));
    }
    begin_anew(rank);
    rank.capture(Step{3});
    REQUIRE(rank.pass_until([&] { return rank.durable == Step{3}; }));
  };
  if (is_memory_lost) {
    {
      test::OneRank lost(disk);
      train(lost);
    }
    test::OneRank rank(disk);
    CHECK(rank.restore().value() == Step{3});
    CHECK_FALSE(rank.is_wrong);
  } else {
    test::OneRank rank(disk);
    train(rank);
    rank.engine->detach(rank.session);
    rank.granted.clear();
    CHECK(rank.restore().value() == Step{3});
    CHECK_FALSE(rank.is_wrong);
  }
}

TEST_CASE("begun anew: until a new step is committed, a restore serves the last one from before",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{8});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{8}; }));
  begin_anew(rank);
  rank.engine->detach(rank.session);
  rank.granted.clear();
  CHECK(rank.restore().value() == Step{8});
  CHECK_FALSE(rank.is_wrong);
}

TEST_CASE("begun anew: a message that is repeated to another daemon changes nothing",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  REQUIRE(rank.begin_fresh());
  const std::uint64_t timeline = rank.answer->timeline;
  rank.answer.reset();
  REQUIRE(rank.engine->call(rank.session, control::StartFresh{2}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  CHECK(rank.answer->timeline == timeline);
}

TEST_CASE("begun anew: all ranks do, or none", "[unit][node]") {
  const test::Hosts::Names names = {"A", "B"};
  test::Hosts hosts(names);
  REQUIRE(hosts.begin(names, {0, 1}));
  const std::uint64_t timeline = hosts.ranks[0].answer->timeline;
  const auto anew = [&](std::size_t rank, std::uint64_t ask) {
    hosts.ranks[rank].answer.reset();
    REQUIRE(hosts.engines[rank]->call(hosts.ranks[rank].session,
                                      control::StartFresh{ask, false, true}));
  };
  anew(0, 2);
  CHECK_FALSE(hosts.pass_until([&] { return hosts.ranks[0].answer.has_value(); }));
  // Its trainer waits no more, and its next save goes on as before.
  REQUIRE(hosts.engines[0]->call(hosts.ranks[0].session, control::StartFresh{3}));
  REQUIRE(hosts.pass_until([&] { return hosts.ranks[0].answer.has_value(); }));
  CHECK(hosts.ranks[0].answer->timeline == timeline);
  anew(1, 2);
  anew(0, 4);
  REQUIRE(hosts.pass_until(
      [&] { return hosts.ranks[0].answer.has_value() && hosts.ranks[1].answer.has_value(); }));
  CHECK(hosts.ranks[0].answer->timeline > timeline);
  CHECK(hosts.ranks[0].answer->timeline == hosts.ranks[1].answer->timeline);
}

}  // namespace ckpt::node
