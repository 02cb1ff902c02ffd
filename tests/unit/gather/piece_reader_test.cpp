// Goal:   a reader gets the pieces it wants out of a checkpoint, whichever ranks saved them; what
//         no rank saved, and what is damaged, is named.
// Method: real shards on a disk in memory. Each element of a tensor carries its own number.
#include "gather/piece_reader.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "base/random.hpp"
#include "unit/gather/numbered_scene.hpp"

namespace ckpt::gather {
namespace {

using Catch::Matchers::Contains;
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

class WatchedCompute final : public Compute {
 public:
  Task<void> run(std::function<void()> work) override {
    is_at_work = true;
    work();
    is_at_work = false;
    co_return Status();
  }

  bool is_at_work = false;
};

// Passes all on, and counts the Chunks that were put straight into their places.
class Watched final : public ShardSource {
 public:
  explicit Watched(ShardSource& source) : source_(source) {}

  std::uint32_t shard_count() const override { return source_.shard_count(); }
  Task<Excerpt> look(std::uint32_t rank, std::vector<std::string> names) override {
    return source_.look(rank, std::move(names));
  }
  Task<std::shared_ptr<const format::ShardRecord>> whole_record(std::uint32_t rank) override {
    return source_.whole_record(rank);
  }
  Task<void> read(std::shared_ptr<const format::ShardRecord> record,
                  std::vector<std::size_t> chunks, ChunkSink sink,
                  const storage::TransferHooks& hooks) override {
    ChunkSink watched = sink;
    watched.copy = [this, copy = sink.copy](std::size_t index, std::span<const std::byte> bytes) {
      ++copied;
      --in_place;
      CHECK((compute == nullptr || compute->is_at_work));
      copy(index, bytes);
    };
    watched.take = [this, take = sink.take](std::size_t index, std::span<const std::byte> bytes) {
      ++in_place;
      CHECK(bytes.empty());
      take(index, bytes);
    };
    watched.places = [this, places = sink.places](std::size_t index) {
      auto found = places(index);
      places_of_one = std::max(places_of_one, found.size());
      return found;
    };
    return source_.read(std::move(record), std::move(chunks), std::move(watched), hooks);
  }

  int in_place = 0;
  int copied = 0;
  std::size_t places_of_one = 0;
  WatchedCompute* compute = nullptr;  // That copies all; null: anybody may.

 private:
  ShardSource& source_;
};

struct PageOfNumbers {
  alignas(page_bytes) std::uint32_t numbers[8 * page_bytes / sizeof(std::uint32_t)];
};

}  // namespace

TEST_CASE("piece reader: chunks of which all is wanted come straight to their places",
          "[unit][gather]") {
  // A row is a Chunk, as the tensors lie from a page on.
  const std::uint64_t row = page_bytes / sizeof(std::uint32_t);
  const Shape shape = {8, row};
  const auto target = std::make_unique<PageOfNumbers>();
  Scene scene;
  scene.publish(
      {{{"w", shape, Box{{0, 0}, {4, row}}, {}}}, {{"w", shape, Box{{4, 0}, {4, row}}, {}}}});
  Watched source(scene.source());
  const auto read = [&](const SavedPiece& want, std::size_t at) {
    WantedPiece wanted;
    wanted.want = {want.name, DType::u32, want.shape, want.region, want.order};
    const std::span<std::uint32_t> place(target->numbers + at, plan::count_of(want.region));
    std::ranges::fill(place, 0xffff'ffffU);
    wanted.target = std::as_writable_bytes(place);
    const storage::TransferHooks hooks;
    const Status done = scene.run(read_pieces(source, {0, 1}, {{wanted}, {}}, hooks));
    REQUIRE((done ? "" : done.error().message()) == "");
    CHECK(std::ranges::equal(place, numbers_of(want)));
  };
  SECTION("all rows") {
    read({"w", shape, plan::whole(shape), {}}, 0);
    CHECK(source.in_place == 8);
    CHECK(source.copied == 0);
  }
  SECTION("a range whose first and last Chunks have more") {
    read({"w", shape, FlatRange{row / 2, 4 * row}, {}}, row / 2);
    CHECK(source.in_place == 3);
    CHECK(source.copied == 2);
  }
  SECTION("to memory that no direct read can fill") {
    read({"w", shape, plan::whole(Shape{8, row}), {}}, 0);
    source.in_place = 0;
    read({"w", shape, Box{{1, 0}, {3, row}}, {}}, 1);
    CHECK(source.in_place == 3);  // Verified in the pass that copies.
    CHECK(source.copied == 0);
  }
  SECTION("rows that are halved: each half of a Chunk goes elsewhere, and the rest nowhere") {
    read({"w", shape, Box{{0, 0}, {8, row / 2}}, {}}, 0);
    CHECK(source.in_place == 0);
    CHECK(source.copied == 8);
  }
}

TEST_CASE("piece reader: a chunk of two tensors has a place for each, one of many tensors has none",
          "[unit][gather]") {
  const std::uint64_t half = page_bytes / sizeof(std::uint32_t) / 2;
  const std::uint64_t part = half / 8;  // With 16 of them in a Chunk.
  std::vector<SavedPiece> saved = {{"a", {half}, plan::whole(Shape{half}), {}},
                                   {"b", {half}, plan::whole(Shape{half}), {}}};
  for (int each = 0; each < 16; ++each)
    saved.push_back({"c" + std::to_string(each), {part}, plan::whole(Shape{part}), {}});
  Scene scene;
  scene.publish({saved});
  Watched source(scene.source());
  std::vector<std::vector<std::uint32_t>> targets;
  Wants wants;
  for (const SavedPiece& piece : saved) {
    targets.emplace_back(plan::count_of(piece.region), 0xffff'ffffU);
    WantedPiece wanted;
    wanted.want = {piece.name, DType::u32, piece.shape, piece.region, piece.order};
    wanted.target = std::as_writable_bytes(std::span(targets.back()));
    wants.pieces.push_back(std::move(wanted));
  }
  const storage::TransferHooks hooks;
  REQUIRE(scene.run(read_pieces(source, {0, 1}, std::move(wants), hooks)));
  for (std::size_t each = 0; each < saved.size(); ++each)
    CHECK(targets[each] == numbers_of(saved[each]));
  CHECK(source.places_of_one == 2);
  CHECK(source.in_place == 1);
  CHECK(source.copied > 0);
}

TEST_CASE("piece reader: threads of a compute copy what goes to many places", "[unit][gather]") {
  const SavedPiece rows{"w", {512, 16}, plan::whole(Shape{512, 16}), {}};
  const SavedPiece columns{"w", {512, 16}, plan::whole(Shape{512, 16}), {1, 0}};
  Scene scene;
  scene.publish({{rows}});
  Watched source(scene.source());
  WatchedCompute compute;
  source.compute = &compute;
  std::vector<std::uint32_t> target(plan::count_of(columns.region));
  WantedPiece wanted;
  wanted.want = {"w", DType::u32, columns.shape, columns.region, columns.order};
  wanted.target = std::as_writable_bytes(std::span(target));
  storage::TransferHooks hooks;
  hooks.compute = &compute;
  std::uint64_t came = 0;
  hooks.verified = [&](std::uint64_t bytes) { came += bytes; };
  REQUIRE(scene.run(read_pieces(source, {0, 1}, {{wanted}, {}}, hooks)));
  CHECK(target == numbers_of(columns));
  CHECK(source.copied == 8);
  CHECK(came == wanted.target.size());
}

TEST_CASE("piece reader: two pieces get what both of them want of a chunk", "[unit][gather]") {
  const std::uint64_t row = page_bytes / sizeof(std::uint32_t);
  const SavedPiece rows{"w", {8, row}, plan::whole(Shape{8, row}), {}};
  const SavedPiece some{"w", {8, row}, Box{{2, 0}, {3, row}}, {}};
  const auto target = std::make_unique<PageOfNumbers>();
  std::vector<std::uint32_t> other(plan::count_of(some.region), 0xffff'ffffU);
  Scene scene;
  scene.publish({{rows}});
  Watched source(scene.source());
  Wants wants;
  for (const SavedPiece* piece : {&rows, &some}) {
    WantedPiece wanted;
    wanted.want = {piece->name, DType::u32, piece->shape, piece->region, piece->order};
    wanted.target = piece == &rows ? std::as_writable_bytes(std::span(target->numbers))
                                   : std::as_writable_bytes(std::span(other));
    wants.pieces.push_back(std::move(wanted));
  }
  const storage::TransferHooks hooks;
  REQUIRE(scene.run(read_pieces(source, {0, 1}, std::move(wants), hooks)));
  CHECK(std::ranges::equal(target->numbers, numbers_of(rows)));
  CHECK(other == numbers_of(some));
  CHECK(source.in_place == 5);
  CHECK(source.copied == 3);
}

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

TEST_CASE("piece reader: parts that are named after their place, in several blocks of names",
          "[unit][gather]") {
  constexpr std::uint64_t rows = 1500;
  const Shape shape = {rows, 2};
  std::vector<SavedPiece> shards[2];
  for (std::uint64_t row = 0; row < rows; ++row) {
    const std::string name = fmt::format("w[{}:{}]", row, row + 1);
    shards[row % 2].push_back({name, shape, Box{{row, 0}, {1, 2}}, {}});
  }
  // Between "w" and the names of its parts; rank 1 has nothing before these.
  for (int i = 0; i < 500; ++i)
    shards[0].push_back({fmt::format("w.{}", i), {2}, plan::whole(Shape{2}), {}});
  Scene scene;
  scene.publish({shards[0], shards[1]});
  const auto all = scene.read({"w", shape, plan::whole(shape), {}});
  REQUIRE((all ? "" : all.error().message()) == "");
  CHECK(*all == numbers_of({"w", shape, plan::whole(shape), {}}));
  const SavedPiece some{"w", shape, FlatRange{7, 2900}, {}};
  CHECK(*scene.read(some) == numbers_of(some));
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

TEST_CASE("piece reader: a tensor that no rank saved is named", "[unit][gather]") {
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
