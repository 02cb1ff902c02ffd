// Goal:   a reader gets the pieces it wants out of a checkpoint, whichever ranks saved them; what
//         no rank saved, and what is damaged, is named.
// Method: real shards on a disk in memory. Each element of a tensor carries its own number.
#include "gather/piece_reader.hpp"
#include "gather/stored_shards.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "base/random.hpp"
#include "format/piece.hpp"
#include "unit/storage/storage_fixture.hpp"

namespace ckpt::gather {
namespace {

using Catch::Matchers::Contains;
using Shape = std::vector<std::uint64_t>;

struct SavedPiece {
  std::string name;
  Shape shape;  // Of the global tensor.
  Region region;
  std::vector<std::uint8_t> order;
  std::uint32_t salt = 0;  // Added to the numbers of its elements.
};

// The numbers of a region's elements as they lie in memory.
std::vector<std::uint32_t> numbers_of(const SavedPiece& piece) {
  std::vector<std::uint32_t> numbers(plan::count_of(piece.region));
  const plan::Addresses there = plan::addresses_of(piece.region, piece.shape, piece.order);
  const plan::Addresses global = plan::addresses_of(plan::whole(piece.shape), piece.shape, {});
  for (const Box& box : plan::boxes_of(piece.region, piece.shape)) {
    Shape index = box.offset;
    for (std::uint64_t left = plan::count_of(box.shape); left > 0; --left) {
      numbers[there.of(index)] = static_cast<std::uint32_t>(global.of(index)) + piece.salt;
      for (std::size_t d = index.size(); d-- > 0;) {
        if (++index[d] < box.end(d)) break;
        index[d] = box.offset[d];
      }
    }
  }
  return numbers;
}

format::TensorSpec spec_of(const SavedPiece& piece) {
  format::TensorSpec spec;
  spec.name = piece.name;
  spec.dtype = DType::u32;
  Piece where;
  where.global_shape = piece.shape;
  where.order = piece.order;
  if (const auto* range = std::get_if<FlatRange>(&piece.region)) {
    where.flat_begin = range->begin;
    spec.shape = {static_cast<std::int64_t>(range->count)};
  } else {
    const Box& box = std::get<Box>(piece.region);
    where.offset = box.offset;
    spec.shape.assign(box.shape.begin(), box.shape.end());
    for (std::size_t d = 0; d < piece.order.size(); ++d)  // As it lies in memory.
      spec.shape[d] = static_cast<std::int64_t>(box.shape[piece.order[d]]);
  }
  spec.piece = format::normalized(where, spec.shape);
  return spec;
}

test::MadeShard make_shard(std::uint32_t rank, std::uint32_t world,
                           const std::vector<SavedPiece>& pieces) {
  std::vector<format::TensorSpec> specs;
  for (const SavedPiece& piece : pieces) specs.push_back(spec_of(piece));
  auto layout = format::make_layout(specs, rank, 0);
  REQUIRE((layout ? "" : layout.error().message()) == "");
  auto record = std::make_shared<format::ShardRecord>();
  record->job = "job";
  record->run = test::test_run;
  record->id = {test::step_id(7), rank};
  record->world_size = world;
  record->layout = std::move(layout).value();
  record->model = format::fingerprint(record->layout);
  record->bytes = format::covered_bytes(record->layout, 0);
  record->chunk_bytes = page_bytes;
  auto slot = std::make_shared<std::vector<std::byte>>(record->layout.slot_bytes);
  const auto header = format::render_header(
      record->layout, {"job", to_hex(test::test_run), 1, Step{7}, rank, world});
  REQUIRE(header);
  std::memcpy(slot->data(), header->data(), header->size());
  for (const format::TensorPlace& place : record->layout.tensors) {
    const auto piece = std::ranges::find(pieces, place.name, &SavedPiece::name);
    const auto numbers = numbers_of(*piece);
    if (!numbers.empty())
      std::memcpy(slot->data() + place.extent.offset, numbers.data(), place.extent.bytes);
  }
  test::checksum_chunks(*record, *slot);
  return {record, slot};
}

class Scene : public test::StorageFixture {
 public:
  Scene() { open(); }
  void publish(const std::vector<std::vector<SavedPiece>>& by_rank) {
    std::vector<test::MadeShard> shards;
    const auto world = static_cast<std::uint32_t>(by_rank.size());
    for (std::uint32_t rank = 0; rank < world; ++rank)
      shards.push_back(make_shard(rank, world, by_rank[rank]));
    const auto published = run(test::save(site, shards, ++attempts));
    REQUIRE((published ? "" : published.error().message()) == "");
  }
  std::string step_path() { return site.at(catalog().checkpoints.back().name); }

  // Returns the numbers that arrived.
  Result<std::vector<std::uint32_t>> read(const SavedPiece& want, Reader reader = {0, 1},
                                          std::vector<std::string> also = {}) {
    std::vector<std::uint32_t> target(plan::count_of(want.region), 0xffff'ffffU);
    WantedPiece wanted;
    wanted.want = {want.name, DType::u32, want.shape, want.region, want.order};
    wanted.target = std::as_writable_bytes(std::span(target));
    wanted.also = std::move(also);
    CKPT_TRY(const auto manifest, run(storage::read_manifest_at(files, step_path())));
    const storage::TransferHooks hooks;
    StoredShards source(files, step_path(), manifest);
    CKPT_CHECK(run(read_pieces(source, reader, {{wanted}, {}}, hooks)));
    return target;
  }
  std::string error_of(const SavedPiece& want) {
    const auto read_all = read(want);
    return read_all ? "" : read_all.error().message();
  }
};

Region random_region(Random& random, const Shape& shape) {
  if (random.one_in(3)) {
    const std::uint64_t begin = random.below(plan::count_of(shape));
    return FlatRange{begin, 1 + random.below(plan::count_of(shape) - begin)};
  }
  Box box;
  for (const std::uint64_t length : shape) {
    const std::uint64_t offset = random.below(length);
    box.offset.push_back(offset);
    box.shape.push_back(1 + random.below(length - offset));
  }
  return box;
}

}  // namespace

TEST_CASE("piece reader: any region comes out of any shards", "[unit][gather]") {
  const Shape shape = {37, 8, 24};
  const std::vector<std::uint8_t> permuted = {2, 0, 1};
  Scene scene;
  SECTION("rows, in another order at one rank") {
    scene.publish({{{"w", shape, Box{{0, 0, 0}, {5, 8, 24}}, {}}},
                   {{"w", shape, Box{{5, 0, 0}, {20, 8, 24}}, permuted}},
                   {{"w", shape, Box{{25, 0, 0}, {12, 8, 24}}, {}}}});
  }
  SECTION("flat ranges") {
    scene.publish({{{"w", shape, FlatRange{0, 1001}, {}}},
                   {{"w", shape, FlatRange{1001, 3000}, {}}},
                   {{"w", shape, FlatRange{4001, 37 * 8 * 24 - 4001}, {}}}});
  }
  SECTION("columns, and the whole of it beside") {
    scene.publish({{{"w", shape, Box{{0, 0, 0}, {37, 8, 11}}, {}}},
                   {{"w", shape, Box{{0, 0, 11}, {37, 8, 13}}, {}},
                    {"other", {3}, plan::whole(Shape{3}), {}}}});
  }
  Random random(11);
  for (int round = 0; round < 60; ++round) {
    SavedPiece want{"w", shape, random_region(random, shape), {}};
    if (std::holds_alternative<Box>(want.region) && random.one_in(3)) want.order = permuted;
    const auto numbers = scene.read(want, {static_cast<std::uint32_t>(round), 64});
    REQUIRE((numbers ? "" : numbers.error().message()) == "");
    REQUIRE(*numbers == numbers_of(want));
  }
}

TEST_CASE("piece reader: many tensors, of which a few are wanted", "[unit][gather]") {
  std::vector<std::vector<SavedPiece>> by_rank(3);
  for (int tensor = 0; tensor < 2000; ++tensor) {
    const std::string name = "layers." + std::to_string(tensor) + ".weight";
    for (std::uint64_t rank = 0; rank < 3; ++rank)
      by_rank[rank].push_back({name, {6, 4}, Box{{2 * rank, 0}, {2, 4}}, {}});
  }
  Scene scene;
  scene.publish(by_rank);
  for (const char* const name : {"layers.0.weight", "layers.777.weight", "layers.1999.weight"}) {
    const SavedPiece want{name, {6, 4}, Box{{1, 0}, {4, 4}}, {}};
    const auto numbers = scene.read(want);
    REQUIRE((numbers ? "" : numbers.error().message()) == "");
    CHECK(*numbers == numbers_of(want));
  }
  const SavedPiece unknown{"layers.2000.weight", {6, 4}, plan::whole(Shape{6, 4}), {}};
  CHECK_THAT(scene.error_of(unknown), Contains("layers.2000.weight"));
}

TEST_CASE("piece reader: whole tensors of one name belong to their ranks", "[unit][gather]") {
  const Shape shape = {9};
  const Region whole = plan::whole(shape);
  Scene scene;
  scene.publish({{{"own", shape, whole, {}, 1000}, {"one", shape, whole, {}}},
                 {{"own", shape, whole, {}, 2000}},
                 {{"own", shape, whole, {}, 3000}}});
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto own = scene.read({"own", shape, whole, {}}, {rank, 3});
    REQUIRE((own ? "" : own.error().message()) == "");
    CHECK(own->front() == 1000 * (rank + 1));
  }
  for (const std::uint32_t world : {1, 2, 7}) {
    const auto others = scene.read({"own", shape, whole, {}}, {0, world});
    REQUIRE_FALSE(others);
    CHECK(others.error().code() == Errc::unsupported);
    CHECK_THAT(others.error().message(),
               Contains("\"own\" was saved whole by rank 0 and rank 1 of 3"));
    REQUIRE(scene.read({"one", shape, whole, {}}, {0, world}));
  }
}

TEST_CASE("piece reader: a tensor without elements belongs to nobody", "[unit][gather]") {
  const Shape shape = {0};
  const Region none = Box{{0}, {0}};
  Scene scene;
  scene.publish({{{"empty", shape, none, {}}, {"one", {9}, plan::whole(Shape{9}), {}}},
                 {{"empty", shape, none, {}}}});
  const auto found = scene.read({"empty", shape, none, {}}, {0, 1});
  REQUIRE((found ? "" : found.error().message()) == "");
  CHECK(found->empty());
}

TEST_CASE("piece reader: one memory here is not filled from two tensors", "[unit][gather]") {
  const Shape shape = {8, 4};
  const Region upper = Box{{0, 0}, {4, 4}}, lower = Box{{4, 0}, {4, 4}};
  Scene scene;
  scene.publish({{{"a", shape, upper, {}}, {"b", shape, upper, {}, 1000}},
                 {{"a", shape, lower, {}}, {"b", shape, lower, {}, 1000}}});
  const SavedPiece want{"a", shape, plan::whole(shape), {}};
  REQUIRE(scene.read(want));
  const auto both = scene.read(want, {0, 1}, {"b"});
  REQUIRE_FALSE(both);
  CHECK(both.error().code() == Errc::invalid_argument);
  CHECK_THAT(both.error().message(), Contains("\"a\" and \"b\" share memory here"));
}

TEST_CASE("piece reader: what no rank saved is named", "[unit][gather]") {
  const Shape shape = {8, 4};
  Scene scene;
  scene.publish({{{"w", shape, Box{{0, 0}, {2, 4}}, {}}}, {{"w", shape, Box{{4, 0}, {4, 4}}, {}}}});
  REQUIRE(scene.read({"w", shape, Box{{4, 1}, {4, 2}}, {}}));
  const auto gap = scene.read({"w", shape, plan::whole(shape), {}});
  REQUIRE_FALSE(gap);
  CHECK(gap.error().code() == Errc::invalid_argument);
  CHECK_THAT(gap.error().message(), Contains("no rank has saved w[2:4, :]"));
  const Shape other = {8, 5};
  CHECK_THAT(scene.error_of({"w", other, plan::whole(other), {}}), Contains("\"w\""));
  const auto unknown = scene.read({"v", shape, plan::whole(shape), {}});
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().code() == Errc::invalid_argument);  // Not "begin anew".
}

TEST_CASE("piece reader: a damaged Chunk is named, and others are not read", "[unit][gather]") {
  const Shape shape = {4096};
  Scene scene;
  scene.publish(
      {{{"w", shape, FlatRange{0, 2048}, {}}}, {{"w", shape, FlatRange{2048, 2048}, {}}}});
  const std::string file = scene.step_path() + "/rank-00001.safetensors";
  scene.disk.flip(file, scene.disk.content(file).size() - 1, 0);
  CHECK(scene.read({"w", shape, FlatRange{0, 2100}, {}}));
  const auto damaged = scene.read({"w", shape, FlatRange{2000, 2096}, {}});
  REQUIRE_FALSE(damaged);
  CHECK(damaged.error().code() == Errc::corruption);
  CHECK_THAT(damaged.error().message(), Contains("rank-00001.safetensors") && Contains("chunk"));
}

}  // namespace ckpt::gather
