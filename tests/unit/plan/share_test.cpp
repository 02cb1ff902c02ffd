// Goal:   copies of a piece divide it without a gap and without an overlap, evenly, each in one
//         stretch of memory.
// Method: random row-major pieces; the stretches of all copies must tile the memory, and each of
//         their elements must lie where the piece has it.
#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>
#include <string>

#include "base/random.hpp"
#include "format/piece.hpp"
#include "plan/share.hpp"

namespace ckpt::plan {
namespace {

struct SharedTensor {
  std::vector<std::uint64_t> shape;
  Region region;
  std::vector<std::uint8_t> order;
  DType dtype = DType::f32;
  CopiedPiece piece(std::uint32_t copy, std::uint32_t copies) const {
    return {"w", dtype, region, order, copy, copies};
  }
};

SharedTensor random_tensor(Random& random) {
  SharedTensor sample;
  constexpr DType types[] = {DType::u8, DType::bf16, DType::f32, DType::f64};
  sample.dtype = types[random.below(4)];
  const std::size_t dimensions = 1 + random.below(4);
  Box box;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const std::uint64_t most = dimensions == 1 ? 5'000'000 : dimensions == 2 ? 3000 : 120;
    const std::uint64_t length = random.one_in(3) ? 1 + random.below(12) : 1 + random.below(most);
    const std::uint64_t before = random.below(4);
    box.offset.push_back(before);
    box.shape.push_back(length);
    sample.shape.push_back(before + length + random.below(4));
  }
  if (random.one_in(3)) {
    const std::uint64_t count = count_of(sample.shape);
    const std::uint64_t begin = random.below(count);
    sample.region = FlatRange{begin, 1 + random.below(count - begin)};
    return sample;
  }
  sample.region = box;
  return sample;
}

std::vector<std::uint64_t> random_element(const Region& region, const SharedTensor& sample,
                                          Random& random) {
  const std::vector<Box> boxes = boxes_of(region, sample.shape);
  const Box& box = boxes[random.below(boxes.size())];
  std::vector<std::uint64_t> index;
  for (std::size_t d = 0; d < box.shape.size(); ++d)
    index.push_back(box.offset[d] + random.below(box.shape[d]));
  return index;
}

void check_places(const Share& share, const SharedTensor& sample, Random& random) {
  const std::uint64_t size = size_of(sample.dtype);
  const Addresses there = addresses_of(sample.region, sample.shape, sample.order);
  const Addresses here = addresses_of(share.region, sample.shape, sample.order);
  for (int i = 0; i < 20; ++i) {
    const auto element = random_element(share.region, sample, random);
    REQUIRE(there.of(element) * size == share.offset + here.of(element) * size);
  }
}

}  // namespace

TEST_CASE("share: the copies of a piece tile it", "[unit][plan]") {
  Random random(7);
  int cut = 0;
  int whole = 0;
  for (int round = 0; round < 4000; ++round) {
    const SharedTensor sample = random_tensor(random);
    const auto copies = static_cast<std::uint32_t>(1 + random.below(11));
    struct Stretch {
      std::uint64_t begin = 0, end = 0;
    };
    std::vector<Stretch> stretches;
    for (std::uint32_t copy = 0; copy < copies; ++copy) {
      const auto share = share_of(sample.piece(copy, copies), 0);
      if (!share) continue;
      REQUIRE(format::check_inside(share->region, sample.shape));
      const std::uint64_t bytes = count_of(share->region) * size_of(sample.dtype);
      if (bytes > 0) check_places(*share, sample, random);
      stretches.push_back({share->offset, share->offset + bytes});
    }
    std::sort(stretches.begin(), stretches.end(),
              [](const Stretch& one, const Stretch& other) { return one.begin < other.begin; });
    std::uint64_t at = 0;
    for (const Stretch& stretch : stretches) {
      REQUIRE(stretch.begin == at);
      at = stretch.end;
    }
    REQUIRE(at == sample.piece(0, copies).bytes());
    (stretches.size() > 1 ? cut : whole) += 1;
  }
  CHECK(cut > 500);
  CHECK(whole > 500);
}

TEST_CASE("share: each copy captures its part of the bytes", "[unit][plan]") {
  // A transformer: an embedding, and layers of matrices, biases and norms.
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> tensors = {
      {"embedding", {50257, 768}}};
  for (int layer = 0; layer < 12; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    tensors.insert(tensors.end(), {{name + ".attention", {2304, 768}},
                                   {name + ".out", {768, 768}},
                                   {name + ".up", {3072, 768}},
                                   {name + ".down", {768, 3072}},
                                   {name + ".bias", {3072}},
                                   {name + ".norm", {768}}});
  }
  const std::uint32_t copies = GENERATE(2U, 3U, 7U, 8U, 64U);
  const std::uint64_t limit = 0;
  std::uint64_t all = 0;
  std::uint64_t most = 0;
  for (std::uint32_t copy = 0; copy < copies; ++copy) {
    std::uint64_t captured = 0;
    all = 0;
    for (const auto& [name, shape] : tensors) {
      const Region region = plan::whole(shape);
      const CopiedPiece piece{name, DType::f32, region, {}, copy, copies};
      all += piece.bytes();
      if (const auto share = share_of(piece, limit)) captured += count_of(share->region) * 4;
    }
    most = std::max(most, captured);
  }
  INFO(copies << " copies: " << most << " of " << all);
  CHECK(most * copies <= all + all / 10);
}

TEST_CASE("share: small pieces are captured by every copy", "[unit][plan]") {
  const std::vector<std::uint64_t> shape = {768};
  const Region region = plan::whole(shape);
  for (std::uint32_t copy = 0; copy < 4; ++copy) {
    const auto share = share_of({"norm", DType::f32, region, {}, copy, 4}, 3072);
    REQUIRE(share);
    CHECK(share->region == region);
    CHECK(share->offset == 0);
  }
  int captured = 0;
  for (std::uint32_t copy = 0; copy < 4; ++copy)
    captured += share_of({"norm", DType::f32, region, {}, copy, 4}, 3071).has_value();
  CHECK(captured == 1);
}

TEST_CASE("share: small tensors are small in sum, and equal sizes are treated alike",
          "[unit][plan]") {
  CHECK(small_limit({}) == 0);
  CHECK(small_limit({0, 0, 4}) == 4);
  CHECK(small_limit({small_sum_max}) == small_sum_max);
  CHECK(small_limit({small_sum_max + 1}) == 0);
  CHECK(small_limit({1024, small_sum_max - 1024}) == small_sum_max - 1024);
  CHECK(small_limit({1024, small_sum_max - 1023}) == 1024);
  CHECK(small_limit({1024, small_sum_max / 2, small_sum_max / 2}) == 1024);
  CHECK(small_limit({UINT64_MAX, 8, UINT64_MAX}) == 8);
  constexpr std::uint64_t part = small_sum_max / 16;
  CHECK(small_limit({7 * part, 4 * part, 6 * part}) == 6 * part);
}

}  // namespace ckpt::plan
