// Goal:   `ckpt verify` names the elements that no rank of a step has saved, and `ckpt gc` leaves
//         the last step that has them.
// Method: a run on the real disk with steps of which a rank saved all rows of a tensor, or half.
#include "unit/cli/made_steps.hpp"
#include "unit/cli/stored_run.hpp"

namespace ckpt::cli {

namespace {

using Catch::Contains;
using Names = std::vector<std::string>;

class PiecesScene : public StoredRun {
 public:
  PiecesScene() {
    given.dir = dir;
    given.runtime_dir = runtime_dir();
    given.rule.max_ckpt_num = 1;
  }
  // The first `count` of 4 rows of "weight", and as many of "bias".
  std::string save_rows(std::uint64_t step, std::uint64_t count) {
    const MadeRank rank{{rows("weight", {4, 8}, 0, count, 0), rows("bias", {4, 2}, 0, count, 0)},
                        {}};
    return save({shard_of(0, 1, step, rank)});
  }
  GcOptions given;
};

}  // namespace

TEST_CASE_METHOD(PiecesScene, "missing pieces: gc leaves the last step that has them",
                 "[unit][cli]") {
  for (const std::uint64_t step : {1, 2}) save_rows(step, 4);
  for (const std::uint64_t step : {3, 4}) save_rows(step, 2);
  const Names all = names();
  given.dry_run = true;
  const Outcome shown = must(collect_garbage(given));
  CHECK(names() == all);
  CHECK_THAT(shown.text,
             Contains("Would remove 2 checkpoints") &&
                 Contains("Stays besides: step-000000002, since the newest is stored without "
                          "bias[2:4, :], which no rank has saved, and parts of 1 more"));
  CHECK(shown.json["stays_besides"]["name"] == "step-000000002");
  CHECK(shown.json["stays_besides"]["step"] == 2);
  given.dry_run = false;
  must(collect_garbage(given));
  CHECK(names() == Names{"step-000000002", "step-000000004"});
  save_rows(5, 4);
  const Outcome done = must(collect_garbage(given));
  CHECK(names() == Names{"step-000000005"});
  CHECK(done.json["stays_besides"].is_null());
  CHECK_THAT(done.text, !Contains("Stays besides"));
}

TEST_CASE_METHOD(PiecesScene, "missing pieces: gc leaves nothing for what no step has",
                 "[unit][cli]") {
  for (const std::uint64_t step : {1, 2, 3}) save_rows(step, 2);
  must(collect_garbage(given));
  CHECK(names() == Names{"step-000000003"});
}

TEST_CASE_METHOD(PiecesScene, "missing pieces: gc leaves no abandoned step for them",
                 "[unit][cli]") {
  for (const std::uint64_t step : {1, 2}) save_rows(step, 4);
  save_rows(3, 2);
  // Step 2 is abandoned; step 3 belongs to the timeline that goes on from step 1.
  store_history({{1, {}}, {2, test::step_id(1)}});
  const MadeRank half{{rows("weight", {4, 8}, 0, 2, 0)}, {}};
  test::MadeShard shard = shard_of(0, 1, 4, half);
  auto record = std::make_shared<format::ShardRecord>(*shard.record);
  record->id.at.timeline = 2;
  shard.record = record;
  save({shard});
  must(collect_garbage(given));
  CHECK(names() == Names{"step-000000001", "step-000000004"});
}

TEST_CASE_METHOD(PiecesScene, "missing pieces: verify names them, and calls the step good",
                 "[unit][cli]") {
  const std::string whole = save_rows(1, 4);
  const std::string half = save_rows(2, 2);
  const Outcome all = must(verify(dir, false));
  CHECK_FALSE(all.is_trouble);
  CHECK_THAT(all.text, Contains("good    " + half) &&
                           Contains("  stored without bias[2:4, :], which no rank has saved, and "
                                    "parts of 1 more: a reader of the whole tensor will fail"));
  CHECK(all.json["checkpoints"][0]["missing_pieces"].is_null());
  const Json missing = all.json["checkpoints"][1]["missing_pieces"];
  CHECK(missing["tensors"] == 2);
  CHECK(missing["tensor"] == "bias");
  CHECK(missing["what"] == "bias[2:4, :]");
  CHECK(all.json["checkpoints"][1]["good"] == true);
  const Outcome named = must(verify(half, false));
  CHECK_FALSE(named.is_trouble);
  CHECK_THAT(named.text, Contains("stored without bias[2:4, :]"));
  CHECK_THAT(must(verify(whole, false)).text, !Contains("stored without"));
}

TEST_CASE_METHOD(PiecesScene, "missing pieces: verify does not look for them in a damaged step",
                 "[unit][cli]") {
  damage(save_rows(1, 2) + "/rank-00000.safetensors", 100);
  const Outcome outcome = must(verify(dir, false));
  CHECK(outcome.is_trouble);
  CHECK_THAT(outcome.text, Contains("DAMAGED") && !Contains("stored without"));
}

}  // namespace ckpt::cli
