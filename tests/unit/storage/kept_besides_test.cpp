// Goal:   besides the newest checkpoints, those of chosen steps and the best ones by a metric stay;
//         a metric that is missing or damaged never costs a save, nor another checkpoint.
// Method: the choice over lists of steps, with Levanter's own examples; then saves whose shards
//         carry metrics, on a disk in memory, read back by a catalog that knows nothing else.
#include "format/metrics.hpp"
#include "storage/retention.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::test {

namespace {

std::vector<storage::Checkpoint> steps_with(const std::vector<std::pair<int, double>>& all) {
  std::vector<storage::Checkpoint> made;
  for (const auto& [step, loss] : all) {
    storage::Checkpoint& checkpoint = made.emplace_back();
    checkpoint.at = step_id(static_cast<std::uint64_t>(step));
    if (loss >= 0) checkpoint.metrics["loss"] = loss;
  }
  return made;
}

std::vector<std::uint64_t> kept_of(const std::vector<storage::Checkpoint>& all,
                                   const storage::RetentionRule& rule) {
  std::vector<bool> is_deleted(all.size(), false);
  for (const std::size_t index : storage::select_for_deletion(all, rule, {}))
    is_deleted[index] = true;
  std::vector<std::uint64_t> kept;
  for (std::size_t index = 0; index < all.size(); ++index)
    if (!is_deleted[index]) kept.push_back(number(all[index].at.step));
  return kept;
}

using Kept = std::vector<std::uint64_t>;

class MetricsFixture : public StorageFixture {
 public:
  void save_with(std::uint64_t step, const std::string& metrics) {
    std::vector<MadeShard> shards;
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      ShardWish wish;
      wish.run = test_run;
      wish.at = step_id(step);
      wish.rank = rank;
      wish.world_size = world_size;
      // Those of other ranks do not count.
      wish.metrics = rank == 0 ? metrics : format::render(format::Metrics{{"loss", 0.0}});
      wish.blob_bytes = 500;
      shards.push_back(make_shard(wish));
    }
    const auto published = run(save(site, shards, ++attempts));
    REQUIRE((published ? "" : published.error().message()) == "");
  }
  void save_with(std::uint64_t step, double loss) {
    save_with(step, format::render(format::Metrics{{"loss", loss}, {"accuracy", -loss}}));
  }
  std::vector<std::uint64_t> retained(storage::RetentionRule rule) {
    storage::RetentionOrder order;
    order.run = test_run;
    order.rule = std::move(rule);
    storage::Catalog listed = catalog();
    REQUIRE(run(storage::apply_retention(site, order, listed)).has_value());
    std::vector<std::uint64_t> steps;
    for (const auto& checkpoint : catalog().checkpoints)
      steps.push_back(number(checkpoint.at.step));
    return steps;
  }
};

}  // namespace

TEST_CASE("retention: the first interval counts whose last step is not passed", "[unit][storage]") {
  const std::vector<KeepInterval> intervals{{10, 20}, {50, 100}, {1000, {}}};
  const auto kept = [&](std::uint64_t step) {
    return storage::is_kept_for_good(intervals, Step{step});
  };
  for (const std::uint64_t step : {0, 10, 20, 50, 100, 1000, 2000}) CHECK(kept(step));
  for (const std::uint64_t step : {5, 30, 40, 60, 99, 110, 150, 500, 1500}) CHECK_FALSE(kept(step));
  CHECK_FALSE(storage::is_kept_for_good({}, Step{0}));
  // After the last step of the last interval none is kept.
  CHECK_FALSE(storage::is_kept_for_good(std::vector<KeepInterval>{{10, 20}}, Step{30}));
  CHECK_FALSE(storage::is_kept_for_good(std::vector<KeepInterval>{{0, {}}}, Step{30}));
}

TEST_CASE("retention: chosen steps stay besides the newest", "[unit][storage]") {
  const auto all = steps_with({{10, -1}, {20, -1}, {30, -1}, {35, -1}, {40, -1}, {45, -1}});
  CHECK(kept_of(all, {1, {{20, {}}}, {}}) == Kept{20, 40, 45});
  CHECK(kept_of(all, {2, {{10, 20}}, {}}) == Kept{10, 20, 40, 45});
  CHECK(kept_of(all, {0, {{20, {}}}, {}}).size() == all.size());
  auto abandoned = all;
  abandoned[1].is_abandoned = true;  // It stays, until its step is saved again.
  CHECK(kept_of(abandoned, {1, {{20, {}}}, {}}) == Kept{20, 40, 45});
}

TEST_CASE("retention: the best stay besides the newest", "[unit][storage]") {
  const auto all = steps_with({{1, 0.5}, {2, 0.2}, {3, -1}, {4, 0.2}, {5, 0.9}, {6, 0.7}});
  CHECK(kept_of(all, {1, {}, {1, "loss", false}}) == Kept{4, 6});  // The newer of equal ones.
  CHECK(kept_of(all, {1, {}, {2, "loss", false}}) == Kept{2, 4, 6});
  CHECK(kept_of(all, {1, {}, {1, "loss", true}}) == Kept{5, 6});
  CHECK(kept_of(all, {1, {}, {9, "loss", true}}) == Kept{1, 2, 4, 5, 6});
  CHECK(kept_of(all, {2, {}, {3, "accuracy", true}}) == Kept{5, 6});
  CHECK(kept_of(all, {1, {}, {}}) == Kept{6});
  auto abandoned = all;
  abandoned[3].is_abandoned = true;
  CHECK(kept_of(abandoned, {1, {}, {1, "loss", false}}) == Kept{2, 6});
}

TEST_CASE_METHOD(MetricsFixture, "retention: metrics reach the manifest with the save",
                 "[unit][storage]") {
  open();
  save_with(1, 0.25);
  save_with(2, 0.125);
  must_save(step_id(3));
  save_with(4, 0.5);
  const auto listed = catalog();
  REQUIRE(listed.checkpoints.size() == 4);
  CHECK(listed.checkpoints[0].metrics == format::Metrics{{"accuracy", -0.25}, {"loss", 0.25}});
  CHECK(listed.checkpoints[2].metrics.empty());
  CHECK(retained({1, {}, {1, "loss", false}}) == Kept{2, 4});
}

TEST_CASE_METHOD(MetricsFixture, "retention: metrics that cannot be read cost nothing else",
                 "[unit][storage]") {
  open();
  std::string damaged = format::render(format::Metrics{{"loss", 0.25}});
  damaged[damaged.find("0.25")] = '9';
  save_with(1, damaged);
  save_with(2, "no metrics");
  save_with(3, std::string());
  const auto listed = catalog();
  REQUIRE(listed.checkpoints.size() == 3);
  for (const auto& checkpoint : listed.checkpoints) CHECK(checkpoint.metrics.empty());
  REQUIRE(retained({2, {}, {1, "loss", false}}) == Kept{2, 3});
}

TEST_CASE("retention: a rule is written in words", "[unit][storage]") {
  CHECK(storage::describe({3, {}, {}}) == "only the newest 3 are kept");
  CHECK(storage::describe({1, {}, {}}) == "only the newest is kept");
  CHECK(storage::describe({0, {{100, {}}}, {}}) == "all are kept");
  CHECK(storage::describe({1, {{100, 1000}, {500, {}}}, {2, "loss", false}}) ==
        "only the newest, steps that 100 divides until 1000, steps that 500 divides, the 2 with "
        "the least loss are kept");
}

TEST_CASE("retention: a metric that no checkpoint has may be mistyped", "[unit][storage]") {
  const auto all = steps_with({{1, 0.5}, {2, 0.1}, {3, -1}});
  CHECK(storage::explain_no_best(all, {2, "loss", false}).empty());
  CHECK(storage::explain_no_best(all, {0, "", false}).empty());
  CHECK(storage::explain_no_best(steps_with({{1, -1}}), {2, "loss", false}).empty());
  const std::string doubt = storage::explain_no_best(all, {2, "los", false});
  CHECK(doubt.find("\"los\"") != std::string::npos);
  CHECK(doubt.find("they have: loss") != std::string::npos);
}

TEST_CASE("retention: a step for good that was not stored is found", "[unit][storage]") {
  const std::vector<KeepInterval> tens = {{10, {}}};
  const auto all = steps_with({{10, -1}, {17, -1}, {30, -1}});
  const auto missed = [&](const std::vector<KeepInterval>& intervals, std::uint64_t at) {
    return storage::first_not_stored(intervals, all, step_id(at));
  };
  CHECK(missed(tens, 30) == Step{20});  // The checkpoint before it is of step 17.
  CHECK_FALSE(missed(tens, 17));
  CHECK_FALSE(missed(tens, 20));
  CHECK_FALSE(missed(tens, 10));  // Nothing is known of the time before it.
  CHECK(missed(tens, 45) == Step{40});
  CHECK_FALSE(missed({}, 45));
  CHECK(missed({{100, 34}, {5, 36}, {7, {}}}, 60) == Step{35});
  CHECK(missed({{100, 34}, {40, 36}, {7, {}}}, 60) == Step{42});
  CHECK_FALSE(
      storage::first_not_stored(tens, all, format::StepId{step_id(30).timeline + 1, Step{30}}));
}

}  // namespace ckpt::test
