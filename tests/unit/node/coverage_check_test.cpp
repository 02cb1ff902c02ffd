// Goal:   half of a declared tensor is stored like any other step, and the job says once what is
//         missing.
// Method: one rank declares the first half of a tensor, or all of it, and stores a step.
#include <nlohmann/json.hpp>

#include "unit/node/one_rank.hpp"

namespace ckpt::node {

TEST_CASE("coverage check: a piece that nobody saved is named after the first publish",
          "[unit][node]") {
  const std::uint64_t whole = GENERATE(std::uint64_t{3 * KiB}, std::uint64_t{6 * KiB});
  test::MemoryDisk disk(1);
  disk.put_directory("/scratch");
  test::OneRank rank(disk);
  rank.request.save_storage_interval.steps = 1;
  REQUIRE(rank.begin_fresh());
  format::TensorSpec spec{"weight", DType::u8, {3 * KiB}, "", ""};
  spec.piece.emplace();
  spec.piece->global_shape = {whole};
  spec.piece->offset = {0};
  rank.layout = format::make_layout(std::span(&spec, 1), 0, 0, 2).value();
  REQUIRE(rank.engine->call(rank.session, control::SetLayout{rank.layout}));
  rank.clock.advance(std::chrono::seconds(1));
  rank.capture(Step{1});
  REQUIRE(rank.pass_until([&] { return rank.durable == Step{1}; }));
  rank.clock.advance(std::chrono::seconds(5));
  const auto missing =
      nlohmann::json::parse(rank.engine->status_json())["jobs"][0]["missing_pieces"];
  if (whole == 3 * KiB) {
    CHECK(missing.is_null());
  } else {
    REQUIRE(missing.is_object());
    CHECK(missing["what"] == "weight[3072:6144]");
    CHECK(missing["tensors"] == 1);
  }
}

}  // namespace ckpt::node
