// Goal:   a difference between two checkpoints is found and measured, and there is none where only
//         the number of ranks is another.
// Method: small checkpoints on a disk in memory, compared through buffers of a few bytes.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "cli/item_forms.hpp"
#include "cli/step_difference.hpp"
#include "unit/cli/made_steps.hpp"

namespace ckpt::cli {
namespace {

class DiffScene : public MadeSteps {
 public:
  StepDifference compare(const std::string& one, const std::string& other, TensorChoice choice = {},
                         std::uint64_t buffer_bytes = 20) {
    auto found = run(compare_steps(open_step(one), open_step(other), choice, buffer_bytes));
    REQUIRE((found ? "" : found.error().message()) == "");
    return std::move(found).value();
  }
};

void set(MadeTensor& tensor, std::size_t index, float value) {
  std::memcpy(tensor.bytes.data() + index * sizeof value, &value, sizeof value);
}

double value(DType dtype, std::uint64_t bits) {
  std::array<std::byte, 8> bytes{};
  std::memcpy(bytes.data(), &bits, sizeof bits);
  return static_cast<double>(value_of(dtype, bytes.data()));
}

}  // namespace

TEST_CASE("diff: the number of ranks is no difference", "[unit][cli]") {
  DiffScene scene;
  const MadeTensor bias = floats("b", {7}, 5);
  const auto one = scene.publish(1, {{{floats("w", {5, 3}, 10), bias, tied("c", bias)}, {}}});
  const auto two = scene.publish(2, {{{rows("w", {5, 3}, 0, 2, 10)}, {}},
                                     {{rows("w", {5, 3}, 2, 3, 10), bias, tied("c", bias)}, {}}});
  for (const std::uint64_t buffer_bytes : {4, 20, 1000}) {
    const StepDifference same = scene.compare(one, two, {}, buffer_bytes);
    CHECK(same.differences.empty());
    CHECK(same.tensors_compared == 2);  // A tied one once.
    CHECK(same.blobs_compared == 0);
  }
}

TEST_CASE("diff: elements are counted and measured", "[unit][cli]") {
  DiffScene scene;
  MadeTensor before = floats("w", {10, 3}, 0), after = before;
  set(after, 4, 4.5f);
  set(after, 7, 6.75f);
  set(after, 29, std::numeric_limits<float>::infinity());
  set(before, 12, std::nanf(""));
  set(after, 12, std::nanf(""));  // The same bytes.
  set(before, 0, -0.0f);          // Another than 0, by nothing.
  const auto one = scene.publish(1, {{{before, floats("same", {3}, 1)}, {}}});
  const auto two = scene.publish(2, {{{after, floats("same", {3}, 1)}, {}}});
  for (const std::uint64_t buffer_bytes : {20, 1000}) {
    const StepDifference found = scene.compare(one, two, {}, buffer_bytes);
    REQUIRE(found.differences.size() == 1);
    const Difference& difference = found.differences.front();
    CHECK(difference.name == "w");
    CHECK_FALSE(difference.rank);
    CHECK(difference.kind == DifferenceKind::values);
    CHECK(difference.elements == 30);
    CHECK(difference.values.different == 4);
    CHECK(difference.values.not_finite == 1);
    CHECK(difference.values.largest == 0.5);
    CHECK(found.tensors_compared == 2);
  }
}

TEST_CASE("diff: tensors that only one has, and other types and shapes, are named", "[unit][cli]") {
  DiffScene scene;
  const auto one = scene.publish(
      1, {{{floats("l.2", {2}, 1), floats("l.10", {6}, 1), floats("x", {4}, 1)}, {}}});
  const auto two = scene.publish(2, {{{floats("l.10", {2, 3}, 1), floats("l.11", {1}, 1),
                                       made<std::int32_t>("x", DType::i32, {4}, 1)},
                                      {}}});
  const StepDifference found = scene.compare(one, two);
  REQUIRE(found.differences.size() == 4);
  CHECK(found.differences[0].name == "l.2");
  CHECK(found.differences[0].kind == DifferenceKind::only_in_one);
  CHECK(found.differences[1].kind == DifferenceKind::shape);
  CHECK(found.differences[1].one == "[6]");
  CHECK(found.differences[1].other == "[2, 3]");
  CHECK(found.differences[2].kind == DifferenceKind::only_in_other);
  CHECK(found.differences[3].kind == DifferenceKind::type);
  CHECK(found.differences[3].other == "I32");
  CHECK(found.tensors_compared == 0);
  CHECK(scene.compare(one, two, {{"l.1?"}, ""}).differences.size() == 2);
  const auto nothing = scene.run(
      compare_steps(scene.open_step(one), scene.open_step(two), TensorChoice{{"none"}, ""}, 20));
  REQUIRE_FALSE(nothing);
  CHECK(nothing.error().code() == Errc::not_found);
}

TEST_CASE("diff: each rank's own state is compared rank by rank", "[unit][cli]") {
  DiffScene scene;
  std::vector<MadeRank> ranks(3);
  for (std::size_t rank = 0; rank < 3; ++rank)
    ranks[rank] = {{floats("seed", {5}, static_cast<float>(rank))}, {{"epoch", "7"}}};
  const auto one = scene.publish(1, ranks);
  set(ranks[2].tensors[0], 1, 99);
  ranks[1].blobs["epoch"] = "8";
  const auto two = scene.publish(2, ranks);
  const StepDifference found = scene.compare(one, two);
  REQUIRE(found.differences.size() == 2);
  CHECK(found.differences[0].name == "seed");
  CHECK(found.differences[0].rank == 2u);
  CHECK(found.differences[0].values.different == 1);
  CHECK(found.differences[1].kind == DifferenceKind::blob);
  CHECK(found.differences[1].rank == 1u);
  CHECK(found.tensors_compared == 3);
  CHECK(found.blobs_compared == 3);

  ranks.resize(2);
  const auto fewer = scene.publish(3, ranks);
  const StepDifference lost = scene.compare(two, fewer);
  REQUIRE(lost.differences.size() == 1);
  CHECK(lost.differences[0].kind == DifferenceKind::only_in_one);
  CHECK(lost.differences[0].rank == 2u);
  CHECK(lost.blobs_compared == 0);
  // One tensor beside several: it is compared with each.
  ranks.resize(1);
  const auto single = scene.publish(4, ranks);
  for (const bool is_first : {true, false}) {
    const StepDifference each =
        is_first ? scene.compare(single, fewer) : scene.compare(fewer, single);
    REQUIRE(each.differences.size() == 1);
    CHECK(each.differences[0].rank == 1u);
    CHECK(each.tensors_compared == 2);
  }
}

TEST_CASE("diff: the order in memory is no difference", "[unit][cli]") {
  DiffScene scene;
  MadeTensor plain = floats("w", {2, 2}, 0), turned = plain;
  set(turned, 1, 2);
  set(turned, 2, 1);
  const std::string structure = R"({"w":{"t":"w","torch":"float32","shape":[2,2],"order":[1,0]}})";
  const auto one = scene.publish(1, {{{plain}, {}}});
  const auto two = scene.publish(2, {{{turned}, {{items_blob, structure}}}});
  const StepDifference found = scene.compare(one, two);
  REQUIRE(found.differences.size() == 1);
  CHECK(found.differences[0].kind == DifferenceKind::only_in_other);  // The blob.
  CHECK(found.tensors_compared == 1);
}

TEST_CASE("diff: elements of every type have their value", "[unit][cli]") {
  CHECK(value(DType::f16, 0x3555) == 0.333251953125);
  CHECK(value(DType::f16, 0x0001) == std::ldexp(1.0, -24));
  CHECK(value(DType::f16, 0xFBFF) == -65504);
  CHECK(std::isinf(value(DType::f16, 0x7C00)));
  CHECK(std::isnan(value(DType::f16, 0x7E00)));
  CHECK(value(DType::bf16, 0x3FC0) == 1.5);
  CHECK(std::isinf(value(DType::bf16, 0xFF80)));
  CHECK(value(DType::bf16, 0x0001) == std::ldexp(1.0, -133));
  CHECK(value(DType::f8_e4m3, 0x7E) == 448);
  CHECK(std::isnan(value(DType::f8_e4m3, 0x7F)));
  CHECK(value(DType::f8_e4m3, 0x01) == std::ldexp(1.0, -9));
  CHECK(value(DType::f8_e5m2, 0x7B) == 57344);
  CHECK(std::isinf(value(DType::f8_e5m2, 0x7C)));
  CHECK(value(DType::f8_e8m0, 127) == 1);
  CHECK(value(DType::f8_e8m0, 0) == std::ldexp(1.0, -127));
  CHECK(std::isnan(value(DType::f8_e8m0, 255)));
  CHECK(value(DType::i8, 0xFF) == -1);
  CHECK(value(DType::u64, 1ull << 63) == std::ldexp(1.0, 63));
  CHECK(value(DType::boolean, 1) == 1);
  ElementDifference sum;
  const std::array<float, 2> one = {1, 2}, other = {4, 6};
  add_difference(DType::c64, std::as_bytes(std::span(one)), std::as_bytes(std::span(other)), sum);
  CHECK(sum.different == 1);
  CHECK(sum.largest == 5);
}

}  // namespace ckpt::cli
