// Goal:   a job whose manifest would be too large trains on in memory; nothing is written for
//         nothing, and whoever waits for storage learns at once why it never comes.
// Method: one rank on an engine whose manifests may have hardly any bytes.
#include <catch2/catch.hpp>

#include "base/log.hpp"
#include "unit/node/one_rank.hpp"

using Catch::Contains;

namespace ckpt::node {

namespace {

EngineOptions hardly_any() {
  EngineOptions options;
  options.manifest_bytes_max = 1500;
  return options;
}

struct TooLarge {
  TooLarge() {
    disk.put_directory("/scratch");
    rank.emplace(disk, 3 * KiB, hardly_any());
    rank->request.save_storage_interval.steps = 1;
    REQUIRE(rank->begin_fresh());
    rank->capture(Step{1});
    REQUIRE(rank->pass_until([&] { return !rank->notice.unstorable.empty(); }));
  }
  bool has_files_of_steps() const {
    const auto tree = disk.tree();
    return std::any_of(tree.begin(), tree.end(), [](const std::string& path) {
      return path.find("step-") != std::string::npos;
    });
  }
  test::MemoryDisk disk{1};
  std::optional<test::OneRank> rank;
};

}  // namespace

TEST_CASE_METHOD(TooLarge, "too large to store: the trainer learns it with its first step",
                 "[unit][node]") {
  CHECK(rank->committed == Step{1});
  CHECK_THAT(rank->notice.unstorable, Contains("the manifest of 1 ranks would take"));
  CHECK_THAT(rank->notice.degraded, Contains(rank->notice.unstorable));
  for (std::uint64_t step = 2; step <= 6; ++step) {
    rank->clock.advance(std::chrono::minutes(1));
    REQUIRE(rank->pass_until([&] { return !rank->granted.empty(); }));
    rank->capture(Step{step});
    REQUIRE(rank->pass_until([&] { return rank->committed == Step{step}; }));
  }
  CHECK(rank->durable == Step{});
  CHECK_FALSE(has_files_of_steps());
}

TEST_CASE_METHOD(TooLarge, "too large to store: close fails at once, and the memory stays",
                 "[unit][node]") {
  const Time before = rank->clock.now();
  REQUIRE(rank->engine->call(rank->session, control::Close{std::chrono::minutes(10)}));
  REQUIRE(rank->pass_until([&] { return rank->end.has_value(); }));
  CHECK(rank->clock.now() < before + std::chrono::seconds(2));
  REQUIRE_FALSE(rank->end->has_value());
  CHECK(rank->end->error().code() == Errc::exhausted);
  CHECK_THAT(rank->end->error().message(), Contains("no step can be stored"));
  rank->engine->detach(rank->session);
  rank->answer.reset();
  rank->clock.advance(std::chrono::minutes(1));
  CHECK(rank->restore().value() == Step{1});
  CHECK_FALSE(has_files_of_steps());
}

TEST_CASE_METHOD(TooLarge, "too large to store: the end of a daemon does not wait for it",
                 "[unit][node]") {
  const Time before = rank->clock.now();
  const Status stopped = test::finish(
      rank->clock, test::start(rank->context, rank->engine->flush(std::chrono::minutes(5), 5)));
  CHECK(rank->clock.now() < before + std::chrono::seconds(2));
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error().code() == Errc::exhausted);
}

}  // namespace ckpt::node
