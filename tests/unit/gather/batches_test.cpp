// Goal:   whole tensors come through a small buffer, in any order of their dimensions, and a step's
//         tensors are listed as they are, whichever ranks saved them.
// Method: real shards on a disk in memory. Each element carries its own number, and is looked up by
//         its index, in the order that was asked for.
#include "gather/batches.hpp"

#include <catch2/catch.hpp>

#include "base/random.hpp"
#include "gather/coverage.hpp"
#include "gather/known_shards.hpp"
#include "gather/stored_shards.hpp"
#include "gather/tensor_list.hpp"
#include "unit/gather/numbered_scene.hpp"

namespace ckpt::gather {
namespace {

using Catch::Matchers::Contains;

// The numbers of all elements, with the dimensions in this order.
std::vector<std::uint32_t> numbers_in_order(const Shape& shape, std::vector<std::uint8_t> order) {
  SavedPiece piece;
  piece.shape = shape;
  piece.region = plan::whole(shape);
  piece.order = std::move(order);
  return numbers_of(piece);
}

TensorToRead to_read(std::string name, Shape shape, std::vector<std::uint8_t> order = {}) {
  TensorToRead tensor;
  tensor.name = std::move(name);
  tensor.dtype = DType::u32;
  tensor.shape = std::move(shape);
  tensor.order = std::move(order);
  return tensor;
}

class Reading : public Scene {
 public:
  // All of the tensors, through a buffer of this size, one behind the other.
  std::vector<std::uint32_t> read_all(const std::vector<TensorToRead>& tensors,
                                      std::uint64_t buffer_bytes) {
    auto known = run(KnownShards::read(source()));
    REQUIRE(known);
    std::vector<std::uint32_t> all;
    for (const Batch& batch : make_batches(tensors, buffer_bytes)) {
      REQUIRE(bytes_of(batch) <= std::max<std::uint64_t>(buffer_bytes, sizeof(std::uint32_t)));
      std::vector<std::uint32_t> part(bytes_of(batch) / sizeof(std::uint32_t), 0xffff'ffffU);
      const auto bytes = std::as_writable_bytes(std::span(part));
      const storage::TransferHooks hooks;
      const Status read = run(read_batch(**known, tensors, batch, bytes, hooks));
      REQUIRE((read ? "" : read.error().message()) == "");
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
};

}  // namespace

TEST_CASE("batches: any buffer gives all elements in their order", "[unit][gather]") {
  const Shape shape = {7, 5, 11};
  const Shape flat = {97};
  Reading scene;
  scene.publish({{{"w", shape, Box{{0, 0, 0}, {7, 5, 4}}, {}},
                  {"flat", flat, FlatRange{0, 40}, {}},
                  {"scalar", {}, plan::whole({}), {}}},
                 {{"w", shape, Box{{0, 0, 4}, {7, 5, 7}}, {2, 0, 1}},
                  {"flat", flat, FlatRange{40, 57}, {}},
                  {"none", {0, 3}, plan::whole(Shape{0, 3}), {}}}});
  for (const std::vector<std::uint8_t>& order :
       {std::vector<std::uint8_t>{}, {2, 0, 1}, {1, 2, 0}, {2, 1, 0}}) {
    const std::vector<TensorToRead> tensors = {to_read("w", shape, order), to_read("none", {0, 3}),
                                               to_read("scalar", {}), to_read("flat", flat)};
    std::vector<std::uint32_t> expected = numbers_in_order(shape, order);
    for (const Shape& other : {Shape{}, flat}) {
      const auto numbers = numbers_in_order(other, {});
      expected.insert(expected.end(), numbers.begin(), numbers.end());
    }
    for (const std::uint64_t bytes : {1, 4, 12, 44, 220, 224, 1000, 1540, 1544, 100'000})
      REQUIRE(scene.read_all(tensors, bytes) == expected);
  }
}

TEST_CASE("batches: a tensor that fits into a buffer is not cut", "[unit][gather]") {
  const std::vector<TensorToRead> tensors = {to_read("a", {3}), to_read("b", {5, 2}),
                                             to_read("c", {20}), to_read("d", {1})};
  const auto batches = make_batches(tensors, 48);
  REQUIRE(batches.size() == 4);
  CHECK(batches[0].size() == 1);  // 12 bytes; the next has 40.
  CHECK(batches[1].size() == 1);
  CHECK(bytes_of(batches[2]) == 48);  // Of 80, which fit nowhere.
  CHECK(bytes_of(batches[3]) == 36);
  CHECK(batches[3].back().tensor == 3);
  CHECK(make_batches({}, 48).empty());
}

TEST_CASE("batches: missing tensors are known before anything is read", "[unit][gather]") {
  const Shape shape = {8, 4};
  Scene scene;
  scene.publish({{{"w", shape, Box{{0, 0}, {2, 4}}, {}}}, {{"w", shape, Box{{4, 0}, {4, 4}}, {}}}});
  auto known = scene.run(KnownShards::read(scene.source()));
  REQUIRE(known);
  const std::vector<TensorToRead> tensors = {to_read("w", shape)};
  scene.disk.clear_log();
  const Status missing = scene.run(check_tensors(**known, tensors));
  REQUIRE_FALSE(missing);
  CHECK_THAT(missing.error().message(), Contains("no rank has saved w[2:4, :]"));
  CHECK(scene.disk.log().empty());
}

TEST_CASE("batches: a whole tensor of several ranks comes from the one that is named",
          "[unit][gather]") {
  const Shape shape = {9};
  Reading scene;
  scene.publish({{{"own", shape, plan::whole(shape), {}, 1000}},
                 {{"own", shape, plan::whole(shape), {}, 2000}}});
  for (const std::uint32_t rank : {0, 1}) {
    std::vector<TensorToRead> tensors = {to_read("own", shape)};
    tensors.front().rank = rank;
    CHECK(scene.read_all(tensors, 8).front() == 1000 * (rank + 1));
  }
}

TEST_CASE("known shards: a name that a rank lacks is found as nothing", "[unit][gather]") {
  const Shape shape = {3};
  Scene scene;
  scene.publish({{{"a", shape, plan::whole(shape), {}}, {"c", shape, plan::whole(shape), {}}}});
  const auto known = scene.run(KnownShards::read(scene.source()));
  REQUIRE(known);
  std::vector<std::string> names = {"", "a", "b", "c", "d"};
  const auto found = scene.run((*known)->look(0, names));
  REQUIRE(found);
  REQUIRE(found->tensors.size() == 2);
  CHECK(found->tensors[0].name == "a");
  CHECK(found->tensors[1].name == "c");
}

TEST_CASE("known shards: parts that are named after their place come with the tensor, once",
          "[unit][gather]") {
  const Shape shape = {8, 2};
  Scene scene;
  scene.publish({{{"w", {3}, plan::whole(Shape{3}), {}},
                  {"w.x", {3}, plan::whole(Shape{3}), {}},
                  {"w[0:2]", shape, Box{{0, 0}, {2, 2}}, {}},
                  {"w[0:8]", shape, Box{{3, 0}, {1, 2}}, {}},
                  {"w[4:6]", shape, Box{{6, 0}, {1, 2}}, {}},  // It lies elsewhere.
                  {"wx", {3}, plan::whole(Shape{3}), {}}}});
  const auto known = scene.run(KnownShards::read(scene.source()));
  REQUIRE(known);
  StoredShards& stored = scene.source();
  for (ShardSource* source :
       {static_cast<ShardSource*>(known->get()), static_cast<ShardSource*>(&stored)}) {
    const auto names_of = [&](std::vector<std::string> asked) {
      const auto found = scene.run(source->look(0, std::move(asked)));
      REQUIRE(found);
      std::vector<std::string> names;
      for (const format::TensorPlace& tensor : found->tensors) names.push_back(tensor.name);
      std::ranges::sort(names);
      return names;
    };
    CHECK(names_of({"w"}) == std::vector<std::string>{"w", "w[0:2]", "w[0:8]"});
    CHECK(names_of({"w", "w[0:2]"}) == std::vector<std::string>{"w", "w[0:2]", "w[0:8]"});
    CHECK(names_of({"w[0:2]"}) == std::vector<std::string>{"w[0:2]"});
    CHECK(names_of({"v"}).empty());
  }
}

TEST_CASE("tensor list: parts are listed by name and rank", "[unit][gather]") {
  const Shape shape = {6, 4};
  Scene scene;
  scene.publish({{{"layers.10.w", shape, Box{{0, 0}, {2, 4}}, {}},
                  {"layers.2.w", {3}, plan::whole(Shape{3}), {}},
                  {"odd", {3}, plan::whole(Shape{3}), {}}},
                 {{"layers.10.w", shape, Box{{2, 0}, {4, 4}}, {}},
                  {"layers.2.w", {3}, plan::whole(Shape{3}), {}},
                  {"odd", {4}, plan::whole(Shape{4}), {}}}});
  const auto known = scene.run(KnownShards::read(scene.source()));
  REQUIRE(known);
  const auto list = list_tensors(**known);
  REQUIRE(list.size() == 3);
  CHECK(list[0].name == "layers.2.w");
  CHECK(list[0].whole_in() == std::vector<std::uint32_t>{0, 1});
  CHECK(list[0].is_each_ranks_own());
  CHECK(list[0].is_alike);
  CHECK(list[1].name == "layers.10.w");
  CHECK(list[1].shape == shape);
  CHECK(list[1].bytes() == 96);
  CHECK_FALSE(list[1].is_each_ranks_own());
  REQUIRE(list[1].parts.size() == 2);
  CHECK(list[1].parts[1].rank == 1);
  CHECK(list[1].parts[1].place->piece->offset == Shape{2, 0});
  CHECK_FALSE(list[2].is_alike);
}

TEST_CASE("tensor list: parts that have names of their own are one tensor, and are read as one",
          "[unit][gather]") {
  const Shape shape = {6, 4};
  Reading scene;
  scene.publish(
      {{{"w[0:2,0:4]", shape, Box{{0, 0}, {2, 4}}, {}},
        {"w[4:6,0:4]", shape, Box{{4, 0}, {2, 4}}, {}}},
       {{"w", shape, Box{{2, 0}, {1, 4}}, {}}, {"w[3:4]", shape, Box{{3, 0}, {1, 4}}, {}}}});
  const auto known = scene.run(KnownShards::read(scene.source()));
  REQUIRE(known);
  const auto list = list_tensors(**known);
  REQUIRE(list.size() == 1);
  CHECK(list[0].name == "w");
  CHECK(list[0].shape == shape);
  CHECK(list[0].parts.size() == 4);
  CHECK(list[0].part_names == std::vector<std::string>{"w[0:2,0:4]", "w[3:4]", "w[4:6,0:4]"});
  CHECK(find_missing(list).tensors == 0);
  TensorToRead whole = to_read("w", shape);
  whole.part_names = list[0].part_names;
  for (const std::uint64_t bytes : {4, 20, 1000})
    CHECK(scene.read_all({whole}, bytes) == numbers_in_order(shape, {}));
}

TEST_CASE("tensor list: numbers in names are compared as numbers", "[unit][gather]") {
  CHECK(is_before("a.2.w", "a.10.w"));
  CHECK_FALSE(is_before("a.10.w", "a.2.w"));
  CHECK(is_before("a", "a.b"));
  CHECK(is_before("a2", "ab"));
  CHECK(is_before("a.01", "a.1"));  // The same number: by their letters.
  CHECK_FALSE(is_before("a.1", "a.01"));
  CHECK_FALSE(is_before("a.1", "a.1"));
  CHECK(is_before("a.18446744073709551616", "a.18446744073709551617"));
  CHECK(is_before("", "a"));
}

}  // namespace ckpt::gather
