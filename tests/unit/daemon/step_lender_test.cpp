// Goal:   a tool's connection that reads a step in memory gets answers about what there is, and
//         cannot ask about a step before it has opened one.
// Method: a StepLender of an engine with one rank, whose job has committed a step, or none.
#include "daemon/step_lender.hpp"

#include <catch2/catch.hpp>

#include "unit/node/one_rank.hpp"

namespace ckpt::daemon {
namespace {

namespace control = wire::control;

struct Scene {
  Scene() : disk(1), rank(disk) {
    rank.request.dir.clear();
    disk.put_directory("/scratch");
  }
  std::vector<control::Message> ask(const control::Message& question) {
    auto pending = test::start(rank.context, lender().answer(question));
    auto answered = test::finish(rank.clock, pending);
    REQUIRE(answered);
    return std::move(*answered);
  }
  StepLender& lender() {
    if (!lender_) lender_.emplace(*rank.engine);
    return *lender_;
  }

  test::MemoryDisk disk;
  test::OneRank rank;
  std::optional<StepLender> lender_;
};

}  // namespace

TEST_CASE("step lender: a step is opened, described and read", "[unit][daemon]") {
  Scene scene;
  REQUIRE(scene.rank.begin_fresh());
  scene.rank.capture(Step{1});
  REQUIRE(scene.rank.pass_until([&] { return scene.rank.committed == Step{1}; }));
  const auto opened = scene.ask(control::OpenHeld{"job", std::nullopt});
  const auto step = std::get<control::HeldStep>(opened.at(0));
  REQUIRE(step.result);
  CHECK(step.at.step == Step{1});

  const auto held = std::get<control::HeldRecord>(scene.ask(control::AskRecord{0}).at(0));
  REQUIRE(held.result);
  const auto record = format::decode_shard_record(held.record);
  REQUIRE(record);
  CHECK(format::digest_of(*record) == step.digests.at(0));
  const auto chunks = scene.ask(control::AskChunks{0, {0}});
  REQUIRE(chunks.size() == 1);
  const auto& chunk = std::get<control::HeldChunk>(chunks[0]);
  REQUIRE(chunk.result);
  CHECK(crc32(chunk.bytes) == record->chunk_crcs.at(0));
}

TEST_CASE("step lender: errors are answers, of one message", "[unit][daemon]") {
  Scene scene;
  REQUIRE(scene.rank.begin_fresh());
  const auto none = scene.ask(control::OpenHeld{"another", std::nullopt});
  REQUIRE(none.size() == 1);
  CHECK(std::get<control::HeldStep>(none[0]).result.error().code() == Errc::not_found);
  scene.rank.capture(Step{1});
  REQUIRE(scene.rank.pass_until([&] { return scene.rank.committed == Step{1}; }));
  REQUIRE(std::get<control::HeldStep>(scene.ask(control::OpenHeld{"job", Step{1}}).at(0)).result);
  const auto no_chunks = scene.ask(control::AskChunks{0, {7, 8}});
  REQUIRE(no_chunks.size() == 1);
  CHECK_FALSE(std::get<control::HeldChunk>(no_chunks[0]).result);
  CHECK_FALSE(std::get<control::HeldRecord>(scene.ask(control::AskRecord{3}).at(0)).result);
}

TEST_CASE("step lender: a question about a step before one was opened ends the connection",
          "[unit][daemon]") {
  Scene scene;
  REQUIRE(scene.rank.begin_fresh());
  auto pending = test::start(scene.rank.context, scene.lender().answer(control::AskRecord{0}));
  const auto answered = test::finish(scene.rank.clock, pending);
  REQUIRE_FALSE(answered);
  CHECK(answered.error().code() == Errc::corruption);
  CHECK(StepLender::is_for(control::AskChunks{}));
  CHECK_FALSE(StepLender::is_for(control::AskStatus{}));
}

}  // namespace ckpt::daemon
