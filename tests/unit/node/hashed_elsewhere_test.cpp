// Goal:   the engine's thread takes no checksum of bulk data: all go to the Compute that it has.
// Method: one rank whose Compute counts; its shard is one Chunk, so that each pass over its bytes
//         is one more run.
#include <catch2/catch.hpp>

#include "unit/node/one_rank.hpp"

namespace ckpt::node {

namespace {

struct Stored {
  Stored() { disk.put_directory("/scratch"); }
  test::MemoryDisk disk{1};
};

}  // namespace

TEST_CASE_METHOD(Stored, "hashed elsewhere: sealing and flushing", "[unit][node]") {
  test::OneRank rank(disk);
  REQUIRE(rank.begin_fresh());
  const std::uint64_t before = rank.compute.runs();
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  REQUIRE(rank.compute.runs() == before + 1);
  REQUIRE(rank.engine->call(rank.session, control::Flush{Step{1}}));
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{1}; }));
  REQUIRE(rank.compute.runs() > before + 1);
}

TEST_CASE_METHOD(Stored, "hashed elsewhere: bytes are hashed as they are reported",
                 "[unit][node]") {
  test::OneRank rank(disk, 5 * MiB);
  rank.request.own_slots = 2;
  rank.request.dir.clear();
  REQUIRE(rank.begin_fresh());
  const std::uint64_t before = rank.compute.runs();
  REQUIRE(rank.begin_capture(Step{1}));
  const std::uint64_t generation = rank.slots.at(rank.filling).generation;
  const control::Arrived arrived{rank.filling, generation, 4 * MiB};
  REQUIRE(rank.engine->call(rank.session, arrived));
  REQUIRE(rank.pass_until([&] { return rank.compute.runs() == before + 1; }));
  REQUIRE(rank.end_capture(Step{1}));
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  REQUIRE(rank.compute.runs() == before + 2);
}

TEST_CASE_METHOD(Stored, "hashed elsewhere: a restore from storage", "[unit][node]") {
  test::OneRank(disk).begin_and_store_two_steps();
  test::OneRank rank(disk);
  rank.verifies_offers = true;
  const auto restored = rank.restore();
  REQUIRE(restored);
  REQUIRE(*restored == Step{2});
  REQUIRE(rank.compute.runs() > 0);
}

TEST_CASE_METHOD(Stored, "hashed elsewhere: a copy within the node's memory", "[unit][node]") {
  test::OneRank rank(disk);
  rank.request.dir.clear();
  rank.verifies_offers = true;
  REQUIRE(rank.begin_fresh());
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.committed == Step{1}; }));
  const std::size_t times_ready = rank.times_ready;
  REQUIRE(rank.tell_layout(5 * KiB, 2));  // Larger Slots: those of before are outgrown.
  REQUIRE(rank.pass_until([&] { return rank.times_ready > times_ready; }));
  const std::uint64_t before = rank.compute.runs();
  rank.answer.reset();
  REQUIRE(rank.engine->call(rank.session, control::AskRestore{1, std::nullopt}));
  REQUIRE(rank.pass_until([&] { return rank.answer.has_value(); }));
  REQUIRE(rank.answer->restored);
  REQUIRE(rank.compute.runs() == before + 1);
}

}  // namespace ckpt::node
