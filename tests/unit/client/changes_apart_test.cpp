// Goal:   tensors that change from step to step share as few Chunks as they can with those that do
//         not, and a Layout of which nothing is known stays as it was.
// Method: states as a training of adapters has them, by their order in the file; then any tensors.
#include "client/changes_apart.hpp"

#include <catch2/catch.hpp>
#include <string>

#include "base/random.hpp"
#include "base/units.hpp"

namespace ckpt::client {

namespace {

using Names = std::vector<std::string>;

struct Given {
  std::vector<format::TensorSpec> specs;
  Changes changes;

  void add(bool changing, std::string name, DType dtype, std::vector<std::int64_t> shape,
           std::string alias_of = {}, std::string archive = {}) {
    specs.push_back({std::move(name), dtype, std::move(shape), std::move(alias_of),
                     std::move(archive), std::nullopt});
    changes.push_back(changing);
  }
  format::Layout layout() const {
    return format::make_layout(with_changes_apart(specs, changes), 0, 10).value();
  }
  Names names() const {
    Names names;
    for (const auto& place : layout().tensors) names.push_back(place.name);
    return names;
  }
};

}  // namespace

TEST_CASE("changes apart: they lie behind the header and before the blobs", "[unit][client]") {
  Given given;
  given.add(false, "frozen", DType::f32, {2048});
  given.add(true, "lora", DType::f32, {4096});
  given.add(false, "bias", DType::f32, {3});
  given.add(true, "lora.odd", DType::f32, {5});
  given.add(false, "other bias", DType::f32, {3});
  given.add(true, "moment", DType::f32, {5});
  CHECK(given.names() == Names{"lora", "frozen", "bias", "other bias", "lora.odd", "moment"});
}

TEST_CASE("changes apart: they lie together where their elements are of several sizes",
          "[unit][client]") {
  Given given;
  given.add(false, "bias", DType::bf16, {3});
  given.add(true, "weight", DType::bf16, {3});
  given.add(false, "frequencies", DType::f32, {3});
  given.add(true, "moment", DType::f32, {3});
  given.add(false, "count", DType::i64, {});
  given.add(true, "seed", DType::u64, {});
  const Names expected{"count", "seed", "moment", "frequencies", "bias", "weight"};
  CHECK(given.names() == expected);
  given.add(true, "random", DType::u8, {5});
  Names with_random = expected;
  with_random.push_back("random");
  CHECK(given.names() == with_random);
}

TEST_CASE("changes apart: names that others place follow them", "[unit][client]") {
  Given given;
  given.add(true, "head", DType::f32, {3}, "embed");
  given.add(true, "file//second", DType::u8, {4096}, "", "file");
  given.add(true, "file//first", DType::u8, {4}, "", "file");
  given.add(false, "embed", DType::f32, {3});
  given.add(false, "frozen", DType::f32, {1024});
  CHECK(given.names() == Names{"frozen", "embed", "file//second", "file//first", "head"});
}

TEST_CASE("changes apart: where all are alike nothing moves, and nothing is lost",
          "[unit][client]") {
  Random random(12);
  constexpr DType types[] = {DType::u8, DType::bf16, DType::f32, DType::i64};
  constexpr std::int64_t lengths[] = {0, 1, 3, 512, 4096};
  for (int round = 0; round < 200; ++round) {
    Given given;
    for (std::uint64_t count = random.below(12); count > 0; --count)
      given.add(random.below(2) == 0, std::to_string(count), types[random.below(4)],
                {lengths[random.below(5)]});
    const format::Layout plain = format::make_layout(given.specs, 0, 10).value();
    const format::Layout apart = given.layout();
    CHECK(apart.slot_bytes == plain.slot_bytes);
    CHECK(apart.tensors.size() == plain.tensors.size());
    for (const auto& place : apart.tensors) {
      const bool has_pages = place.extent.bytes % page_bytes == 0;
      CHECK(place.extent.offset % (has_pages ? page_bytes : size_of(place.dtype)) == 0);
    }
    given.changes.assign(given.specs.size(), random.below(2) == 0);
    CHECK(given.layout() == plain);
  }
}

}  // namespace ckpt::client
