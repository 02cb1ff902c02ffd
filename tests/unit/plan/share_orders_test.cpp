// Goal:   copies of a piece that lie in memory in different orders capture all of it together, and
//         each captures one stretch of its own memory.
// Method: random boxes; each copy has an order of its own. Every index of the box must lie in
//         some share, and each share must be without a hole in the memory of its order.
#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>

#include "base/random.hpp"
#include "plan/share.hpp"

namespace ckpt::plan {
namespace {

using Order = std::vector<std::uint8_t>;

Order random_order(std::size_t dimensions, Random& random) {
  Order order(dimensions);
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  for (std::size_t d = dimensions; d-- > 1;) std::swap(order[d], order[random.below(d + 1)]);
  return order;
}

Box random_box(Random& random) {
  Box box;
  const std::size_t dimensions = 2 + random.below(2);
  for (std::size_t d = 0; d < dimensions; ++d) {
    box.offset.push_back(random.below(3));
    box.shape.push_back(random.one_in(3) ? 1 + random.below(3) : 40 + random.below(60));
  }
  return box;
}

// Where the last element of the share lies in the piece's memory, if it has no hole.
void check_is_one_stretch(const Share& share, const Box& piece, const Order& order) {
  const Box& part = std::get<Box>(share.region);
  std::uint64_t stride = 1;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  for (std::size_t level = order.size(); level-- > 0;) {
    const std::size_t d = order[level];
    first += (part.offset[d] - piece.offset[d]) * stride;
    last += (part.offset[d] - piece.offset[d] + part.shape[d] - 1) * stride;
    stride *= piece.shape[d];
  }
  REQUIRE(first * size_of(DType::f64) == share.offset);
  REQUIRE(last - first + 1 == count_of(part.shape));
}

bool is_in(const Box& box, const std::vector<std::uint64_t>& index) {
  for (std::size_t d = 0; d < index.size(); ++d)
    if (index[d] < box.offset[d] || index[d] >= box.offset[d] + box.shape[d]) return false;
  return true;
}

std::size_t uncovered(const Box& box, const std::vector<Box>& parts) {
  std::size_t left = 0;
  std::vector<std::uint64_t> index = box.offset;
  for (std::uint64_t place = 0; place < count_of(box.shape); ++place) {
    std::uint64_t rest = place;
    for (std::size_t d = box.shape.size(); d-- > 0; rest /= box.shape[d])
      index[d] = box.offset[d] + rest % box.shape[d];
    left += std::ranges::none_of(parts, [&](const Box& part) { return is_in(part, index); });
  }
  return left;
}

}  // namespace

TEST_CASE("share: copies in different orders leave out nothing", "[unit][plan]") {
  Random random(11);
  int divided = 0;
  for (int round = 0; round < 300; ++round) {
    const Box box = random_box(random);
    const Region region = box;
    const auto copies = static_cast<std::uint32_t>(2 + random.below(5));
    std::vector<Box> parts;
    for (std::uint32_t copy = 0; copy < copies; ++copy) {
      Order order(box.shape.size());
      std::iota(order.begin(), order.end(), std::uint8_t{0});
      if (random.one_in(2)) order = random_order(box.shape.size(), random);
      const auto share = share_of({"w", DType::f64, region, order, copy, copies}, 0);
      if (!share) continue;
      check_is_one_stretch(*share, box, order);
      parts.push_back(std::get<Box>(share->region));
    }
    REQUIRE(uncovered(box, parts) == 0);
    divided += parts.size() > 1;
  }
  CHECK(divided > 50);
}

TEST_CASE("share: an order with the first dimension slowest is divided, and others are not",
          "[unit][plan]") {
  const std::vector<std::uint64_t> shape = {64, 1, 32, 3, 3};
  const Region region = whole(shape);
  const auto captured = [&](const Order& order) {
    const auto share = share_of({"conv", DType::f64, region, order, 1, 4}, 0);
    REQUIRE(share);
    return count_of(share->region);
  };
  const std::uint64_t all = count_of(shape);
  CHECK(captured({}) == all / 4);
  CHECK(captured({0, 1, 3, 4, 2}) == all / 4);  // A convolution in channels_last.
  CHECK(captured({1, 0, 3, 4, 2}) == all / 4);  // A dimension with one index may be anywhere.
  CHECK(captured({2, 0, 1, 3, 4}) == all);
}

}  // namespace ckpt::plan
