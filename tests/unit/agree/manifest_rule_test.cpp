// Goal:   a step whose manifest cannot be written is never flushed, and everybody learns why, with
//         numbers; a smaller step after it is stored.
// Method: coordinators look at scenes whose copies say how large their entries are.
#include "agree/manifest_rule.hpp"

#include <catch2/catch.hpp>

#include "agree/coordinator.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "scene.hpp"

using Catch::Contains;

namespace ckpt::agree {

namespace {

struct Committed : test::Scene {
  Committed() : test::Scene(2) {
    view.shape.has_storage = true;
    view.shape.save_storage_interval.steps = 1;
    hold_everywhere(1, 5);
    train(1, 5);
    CoordinatorOptions options;
    options.node = "A";
    options.boot = 1;
    options.manifest_bytes_max = 256 * MiB;
    coordinator.emplace(options);
  }
  void set_bytes(std::uint64_t step, std::uint64_t bytes) {
    for (format::NodeReport& node : view.reports) {
      for (format::Holding& holding : node.holdings) {
        if (holding.id.at.step == Step{step}) holding.manifest_bytes = bytes;
      }
    }
  }
  const format::Decree& decide() {
    coordinator->decide(view, now);
    return coordinator->decree();
  }

  std::optional<Coordinator> coordinator;
  Time now{std::chrono::hours(1)};
};

}  // namespace

TEST_CASE_METHOD(Committed, "manifest rule: what fits is flushed", "[unit][agree]") {
  set_bytes(5, 127 * MiB);
  const format::Decree& decree = decide();
  CHECK(decree.committed == format::StepId{1, Step{5}});
  CHECK(decree.flush.has_value());
  CHECK(decree.unstorable.empty());
}

TEST_CASE_METHOD(Committed, "manifest rule: what does not fit is never begun, and said once",
                 "[unit][agree]") {
  set_bytes(5, 128 * MiB);  // Twice that, and what stands around it.
  static std::size_t lines;
  lines = 0;
  Log::set_sink([](LogLevel level, std::string_view) { lines += level == LogLevel::error; });
  for (int minute = 0; minute < 30; ++minute) {
    const format::Decree& decree = decide();
    REQUIRE(decree.committed == format::StepId{1, Step{5}});
    REQUIRE_FALSE(decree.flush.has_value());
    REQUIRE_THAT(decree.unstorable,
                 Contains("2 ranks") && Contains("above the limit of 256.0 MiB"));
    REQUIRE_THAT(decree.degraded, Contains(decree.unstorable));
    now += std::chrono::minutes(1);
  }
  CHECK(lines == 1);
  // The end of a job cannot store it either, and its memory is not freed.
  for (std::size_t index : {0u, 1u}) rank(index).is_closing = true;
  CHECK_FALSE(decide().flush.has_value());
  CHECK_FALSE(decide().ended);
  for (std::size_t index : {0u, 1u}) rank(index).is_closing = false;

  hold_everywhere(1, 6);
  train(1, 6);
  set_bytes(6, 1 * MiB);
  CHECK(decide().committed == format::StepId{1, Step{6}});
  CHECK(decide().unstorable.empty());
  REQUIRE(decide().flush.has_value());
  CHECK(decide().flush->at == format::StepId{1, Step{6}});
  Log::set_sink(nullptr);
}

TEST_CASE_METHOD(Committed, "manifest rule: copies of one rank count once, and the largest does",
                 "[unit][agree]") {
  set_bytes(5, 100);
  CHECK(too_large_to_store(view, {1, Step{5}}, 4000).empty());
  view.reports[1].holdings.front().manifest_bytes = 4000;
  CHECK_FALSE(too_large_to_store(view, {1, Step{5}}, 4000).empty());
  CHECK(too_large_to_store(view, {1, Step{4}}, 4000).empty());
}

TEST_CASE_METHOD(Committed, "manifest rule: without a directory nothing is said", "[unit][agree]") {
  set_bytes(5, 500 * MiB);
  view.shape.has_storage = false;
  CHECK(decide().unstorable.empty());
}

}  // namespace ckpt::agree
