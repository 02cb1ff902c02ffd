// Goal:   a trainer that waits for the death of the one before it learns that its bytes are here.
// Method: a second trainer of a rank attaches, and asks, before the first one has gone.
#include "unit/node/one_rank.hpp"

namespace ckpt::node {

TEST_CASE("announced restore: bytes that are here are named before the Slots are free",
          "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  const SessionId dying = rank.session;
  REQUIRE(rank.fillings.empty());
  REQUIRE(rank.attach());
  rank.answer.reset();
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{1, std::nullopt}));
  rank.clock.advance(std::chrono::seconds(5));
  REQUIRE_FALSE(rank.answer);
  REQUIRE(rank.fillings.size() == 1);
  CHECK(rank.fillings[0].bytes == 0);
  CHECK(rank.fillings[0].bytes_total >= rank.tensor_bytes);
  CHECK(rank.fillings[0].source_name == "own memory");
  rank.engine->detach(dying);
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  REQUIRE(rank.answer->restored);
  CHECK(rank.answer->restored->step == Step{1});
  CHECK(rank.fillings.size() == 1);
}

TEST_CASE("announced restore: nothing is named where nothing is held", "[unit][node]") {
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  REQUIRE(rank.attach());
  const SessionId dying = rank.session;
  REQUIRE(rank.attach());
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{1, std::nullopt}));
  rank.clock.advance(std::chrono::seconds(5));
  CHECK(rank.fillings.empty());
  rank.engine->detach(dying);
}

}  // namespace ckpt::node
