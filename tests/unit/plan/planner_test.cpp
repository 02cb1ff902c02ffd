// Goal:   a plan brings each wanted element once, from a holder that has it; it names exactly the
//         elements that nobody has; and it prefers and spreads holders as it says.
// Method: random tensors of several types, pieces and wants. Each byte of a holder carries the
//         number of its place in its tensor, so that an oracle that knows nothing of boxes can
//         judge what the transfers have copied, and from whom.
#include <catch2/catch.hpp>

#include "unit/plan/planner_oracle.hpp"

namespace ckpt::plan {
namespace {

// Some regions of tensors that some holder has.
std::vector<Want> random_wants(Random& random, const Scene& scene) {
  std::vector<Want> wants;
  for (const Tensor& tensor : scene.tensors) {
    if (scene.index.find(tensor.name) == nullptr) continue;
    for (std::uint64_t number = 1 + random.below(2); number > 0; --number) {
      Want want{tensor.name, tensor.dtype, tensor.shape, random_region(random, tensor.shape), {}};
      if (random.one_in(4)) want.region = whole(tensor.shape);
      want.order = random_order(random, want.region);
      wants.push_back(std::move(want));
    }
  }
  return wants;
}

constexpr std::uint64_t cases = 100'000;

}  // namespace

TEST_CASE("planner: each wanted element comes once, or is named as a gap", "[unit][plan]") {
  std::uint64_t with_gaps = 0;
  std::uint64_t with_transfers = 0;
  std::uint64_t with_several = 0;
  for (std::uint64_t seed = 1; seed <= cases; ++seed) {
    Random random(seed);
    const Scene scene = random_scene(random);
    const std::vector<Want> wants = random_wants(random, scene);
    const auto reader = static_cast<std::uint32_t>(random.below(10));
    const auto plan = make_plan(scene.index, wants, {scene.standing, reader});
    REQUIRE(plan);
    const std::string fault = Oracle(scene, wants, reader).fault_in(*plan, 1 + seed % 267);
    if (!fault.empty()) FAIL("seed " << seed << ": " << fault);
    with_gaps += plan->gaps.empty() ? 0 : 1;
    with_transfers += plan->transfers.empty() ? 0 : 1;
    with_several += wants.size() > 1 ? 1 : 0;
  }
  CHECK(with_gaps > cases / 10);
  CHECK(with_transfers > cases / 2);
  CHECK(with_several > cases / 2);
}

TEST_CASE("planner: any number of shards becomes any other", "[unit][plan]") {
  for (std::uint64_t from = 1; from <= 8; ++from) {
    for (std::uint64_t to = 1; to <= 8; ++to) {
      Random random(from * 100 + to);
      Scene scene;
      const std::vector<std::uint64_t> shape = {7, 5, 3};
      add_tensor(scene, "w", DType::u32, shape);
      scene.holders.resize(from);
      scene.standing.resize(from);
      const auto held = divided(random, shape, from);
      for (std::uint32_t i = 0; i < from; ++i) hold(random, scene, 0, held[i], i);
      scene.index.finish();
      std::uint64_t bytes = 0;
      for (const Region& region : divided(random, shape, to)) {
        const Want want{"w", DType::u32, shape, region, {}};
        const auto plan = make_plan(scene.index, std::span(&want, 1), {scene.standing, 0});
        REQUIRE(plan);
        CHECK(plan->gaps.empty());
        CHECK(Oracle(scene, std::span(&want, 1), 0).fault_in(*plan, 24) == "");
        for (const Transfer& transfer : plan->transfers) bytes += transfer.bytes();
      }
      CHECK(bytes == count_of(shape) * sizeof(std::uint32_t));
    }
  }
}

TEST_CASE("planner: the lowest tier is asked, and equal holders share the work", "[unit][plan]") {
  const std::vector<std::uint64_t> shape = {4};
  PieceIndex index;
  for (std::uint32_t holder = 0; holder < 4; ++holder) {
    for (const char* name : {"a", "b", "c"})
      REQUIRE(index.add({name, DType::u8, shape, whole(shape), {}, holder, 0}));
  }
  index.finish();
  std::vector<Want> wants;
  for (const char* name : {"a", "b", "c"})
    wants.push_back({name, DType::u8, shape, whole(shape), {}});
  const std::vector<Holder> holders = {{2}, {1}, {1}, {1}};
  const auto plan = make_plan(index, wants, {holders, 0});
  REQUIRE(plan);
  CHECK(plan->bytes_by_holder == std::vector<std::uint64_t>{0, 4, 4, 4});
  // Another reader begins with another one.
  const auto first_of = [&](std::uint32_t reader) {
    const auto other = make_plan(index, std::span(wants).first(1), {holders, reader});
    REQUIRE(other);
    return other->transfers.at(0).holder;
  };
  CHECK(first_of(1) == 1);
  CHECK(first_of(2) == 2);
  CHECK(first_of(3) == 3);
  const std::vector<Holder> lost = {{2}, {1, false}, {1, false}, {1, false}};
  const auto from_the_last = make_plan(index, wants, {lost, 0});
  REQUIRE(from_the_last);
  CHECK(from_the_last->bytes_by_holder == std::vector<std::uint64_t>{12, 0, 0, 0});
}

TEST_CASE("planner: storage gives only what memory lacks", "[unit][plan]") {
  const std::vector<std::uint64_t> shape = {8};
  PieceIndex index;
  REQUIRE(index.add({"w", DType::u8, shape, whole(shape), {}, 0, 0}));
  REQUIRE(index.add({"w", DType::u8, shape, FlatRange{3, 2}, {}, 1, 0}));
  index.finish();
  const std::vector<Holder> holders = {{2}, {1}};
  const Want want{"w", DType::u8, shape, whole(shape), {}};
  const auto plan = make_plan(index, std::span(&want, 1), {holders, 0});
  REQUIRE(plan);
  CHECK(plan->gaps.empty());
  CHECK(plan->bytes_by_holder == std::vector<std::uint64_t>{6, 2});
}

TEST_CASE("planner: a gap is named as an index, a stranger by what is there", "[unit][plan]") {
  const std::vector<std::uint64_t> shape = {1024, 8};
  PieceIndex index;
  REQUIRE(index.add({"w", DType::f32, shape, Box{{0, 0}, {512, 8}}, {}, 0, 0}));
  const auto odd =
      index.add({"w", DType::f32, std::vector<std::uint64_t>{1024, 9}, FlatRange{0, 1}, {}, 1, 0});
  REQUIRE_FALSE(odd);
  CHECK(odd.error().code() == Errc::corruption);
  CHECK(odd.error().text() ==
        "tensor \"w\" is F32 [1024, 9] at holder 1, and F32 [1024, 8] at one before it");
  index.finish();
  const std::vector<Holder> holders(1);
  Want want{"w", DType::f32, shape, whole(shape), {}};
  const auto plan = make_plan(index, std::span(&want, 1), {holders, 0});
  REQUIRE(plan);
  REQUIRE(plan->gaps.size() == 1);
  CHECK(describe(plan->gaps[0], std::span(&want, 1)) == "w[512:1024, :]");
  want.dtype = DType::bf16;
  const auto other_type = make_plan(index, std::span(&want, 1), {holders, 0});
  REQUIRE_FALSE(other_type);
  CHECK(other_type.error().text() ==
        "tensor \"w\" is BF16 [1024, 8] here, and F32 [1024, 8] in the checkpoint");
  want.name = "v";
  const auto unknown = make_plan(index, std::span(&want, 1), {holders, 0});
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().code() == Errc::not_found);
  CHECK(unknown.error().text() == "tensor \"v\" is in no shard");
}

TEST_CASE("planner: rows of a row-major tensor are one run, columns as many as there are rows",
          "[unit][plan]") {
  const std::vector<std::uint64_t> shape = {64, 32, 16};
  PieceIndex index;
  REQUIRE(index.add({"w", DType::f32, shape, whole(shape), {}, 0, 4096}));
  index.finish();
  const std::vector<Holder> holders(1);
  const auto transfer_of = [&](const Region& region) {
    const Want want{"w", DType::f32, shape, region, {}};
    const auto plan = make_plan(index, std::span(&want, 1), {holders, 0});
    REQUIRE(plan);
    REQUIRE(plan->transfers.size() == 1);
    return plan->transfers[0];
  };
  const std::uint64_t row = 32 * 16 * sizeof(float);
  const Transfer rows = transfer_of(Box{{8, 0, 0}, {4, 32, 16}});
  CHECK(rows == Transfer{0, 0, 4096 + 8 * row, 0, 4 * row, {}});
  const Transfer columns = transfer_of(Box{{0, 8, 0}, {64, 4, 16}});
  CHECK(columns ==
        Transfer{0, 0, 4096 + 8 * 64, 0, 4 * 64, {Repeat{64, row, std::uint64_t{4} * 64}}});
}

}  // namespace ckpt::plan
