// Goal:   a flat range is taken apart into few boxes, in order; and what is no tensor is refused.
// Method: ranges of small tensors, all of them; the elements of their boxes are counted one by one.
#include <algorithm>
#include <catch2/catch.hpp>

#include "plan/piece_index.hpp"
#include "plan/region.hpp"

namespace ckpt::plan {
namespace {

std::vector<std::uint64_t> elements_inside(const std::vector<Box>& boxes, Shape shape) {
  std::vector<std::uint64_t> elements;
  const std::uint64_t count = count_of(shape);
  for (const Box& box : boxes) {
    for (std::uint64_t element = 0; element < count; ++element) {
      std::uint64_t rest = element;
      bool is_inside = true;
      for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d]) {
        const std::uint64_t at = rest % shape[d];
        is_inside = is_inside && box.offset[d] <= at && at < box.end(d);
      }
      if (is_inside) elements.push_back(element);
    }
  }
  return elements;
}

}  // namespace

TEST_CASE("region: a range is few boxes, in flattened order", "[unit][plan]") {
  const auto shape = GENERATE(values<std::vector<std::uint64_t>>(
      {{}, {7}, {1, 1}, {3, 4}, {1, 5}, {5, 1}, {2, 3, 4}, {3, 1, 2, 2}}));
  const std::uint64_t count = count_of(shape);
  for (std::uint64_t begin = 0; begin <= count; ++begin) {
    for (std::uint64_t size = 0; size <= count - begin; ++size) {
      const std::vector<Box> boxes = boxes_of(FlatRange{begin, size}, shape);
      std::vector<std::uint64_t> expected;
      for (std::uint64_t i = 0; i < size; ++i) expected.push_back(begin + i);
      REQUIRE(elements_inside(boxes, shape) == expected);
      REQUIRE(boxes.size() <= std::max<std::size_t>(1, 2 * shape.size() - (shape.empty() ? 0 : 1)));
    }
  }
}

TEST_CASE("region: a range of a tensor that fills 64 bits is few boxes", "[unit][plan]") {
  const std::uint64_t row = (std::uint64_t{1} << 62) - 1;
  const std::vector<std::uint64_t> shape = {4, row};
  const auto boxes = boxes_of(FlatRange{3 * row + 5, 10}, shape);
  REQUIRE(boxes == std::vector<Box>{{{3, 5}, {1, 10}}});
  const auto both = boxes_of(FlatRange{3 * row - 5, 10}, shape);
  REQUIRE(both == std::vector<Box>{{{2, row - 5}, {1, 5}}, {{3, 0}, {1, 5}}});
  const auto last = boxes_of(FlatRange{2 * row + 1, 2 * row - 1}, shape);
  REQUIRE(last == std::vector<Box>{{{2, 1}, {1, row - 1}}, {{3, 0}, {1, row}}});
}

TEST_CASE("region: two regions overlap if they have an element in common", "[unit][plan]") {
  const std::vector<std::uint64_t> shape = {3, 4, 2};
  std::vector<Region> regions = {whole(shape), Box{{1, 1, 0}, {0, 2, 2}},
                                 Box{{3, 4, 2}, {0, 0, 0}}};
  for (std::uint64_t begin = 0; begin < 24; begin += 3)
    for (std::uint64_t count = 0; begin + count <= 24; count += 5)
      regions.emplace_back(FlatRange{begin, count});
  for (std::uint64_t row = 0; row < 3; ++row)
    for (std::uint64_t column = 0; column < 4; ++column)
      regions.emplace_back(Box{{row, column, row % 2}, {3 - row, 1 + (4 - column) / 3, 1}});
  std::size_t overlapping = 0;
  for (const Region& one : regions) {
    const auto elements = elements_inside(boxes_of(one, shape), shape);
    for (const Region& other : regions) {
      const auto others = elements_inside(boxes_of(other, shape), shape);
      const bool is_expected = std::ranges::any_of(elements, [&](std::uint64_t element) {
        return std::ranges::find(others, element) != others.end();
      });
      REQUIRE(overlap(one, other, shape) == is_expected);
      overlapping += is_expected ? 1 : 0;
    }
  }
  CHECK(overlapping > 100);
  CHECK(overlap(Box(), FlatRange{0, 1}, {}));  // A scalar.
}

TEST_CASE("region: an index refuses what is no tensor and no order", "[unit][plan]") {
  PieceIndex index;
  const std::vector<std::uint64_t> shape = {4, 6};
  const std::vector<std::uint64_t> huge = {UINT64_MAX, 2};
  const auto refused = [&](const HeldPiece& piece) {
    const Status added = index.add(piece);
    return !added && added.error().code() == Errc::invalid_argument;
  };
  CHECK(refused({"w", DType::f32, huge, FlatRange{0, 1}, {}, 0, 0}));
  const std::vector<std::uint64_t> too_long = {2, std::uint64_t{1} << 62};  // No sum would fit.
  CHECK(refused({"w", DType::u8, too_long, FlatRange{0, 1}, {}, 0, 0}));
  CHECK(refused({"w", DType::f32, shape, whole(shape), {0, 0}, 0, 0}));
  CHECK(refused({"w", DType::f32, shape, whole(shape), {0, 2}, 0, 0}));
  CHECK(refused({"w", DType::f32, shape, whole(shape), {0}, 0, 0}));
  CHECK(refused({"w", DType::f32, shape, FlatRange{0, 24}, {1, 0}, 0, 0}));
  CHECK(refused({"w", DType::f32, shape, Box{{0, 0}, {4, 7}}, {}, 0, 0}));
  CHECK(index.size() == 0);
  CHECK(index.add({"w", DType::f32, shape, whole(shape), {1, 0}, 0, 0}));
  CHECK(index.size() == 1);
}

TEST_CASE("region: a box takes 40 bytes of the index, and 16 for each dimension", "[unit][plan]") {
  const auto dimensions = GENERATE(std::size_t{1}, std::size_t{2}, std::size_t{4});
  PieceIndex index;
  std::vector<std::uint64_t> shape(dimensions, 8);
  shape[0] = 4096;
  constexpr std::uint32_t holders = 1024;
  for (int tensor = 0; tensor < 50; ++tensor) {
    for (std::uint32_t holder = 0; holder < holders; ++holder) {
      Box rows = whole(shape);
      rows.offset[0] = std::uint64_t{holder} * 4;
      rows.shape[0] = 4;
      const std::string name = "layer." + std::to_string(tensor);
      REQUIRE(index.add({name, DType::f32, shape, std::move(rows), {}, holder, 0}));
    }
  }
  index.finish();
  const std::size_t each = 40 + 16 * dimensions;
  CHECK(index.bytes_used() >= each * index.size());
  CHECK(index.bytes_used() < (each + 1) * index.size());  // And a little for each name.
  CHECK((each < 100) == (dimensions < 4));
}

}  // namespace ckpt::plan
