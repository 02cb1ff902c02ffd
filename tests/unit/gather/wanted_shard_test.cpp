// Goal:   a shard that was put together has no checksum that fits wrong bytes, whenever a bit flips
//         in its memory.
// Method: real shards on a disk in memory. A Compute flips a bit of the target after the first
//         piece of work, or after the second, and so on. Columns are short runs; the other tensors
//         are long ones, whose checksums come from what was verified.
#include "gather/wanted_shard.hpp"

#include <catch2/catch.hpp>
#include <limits>

#include "storage/page_buffer.hpp"
#include "unit/gather/numbered_scene.hpp"

namespace ckpt::gather {
namespace {

using Catch::Matchers::Contains;

constexpr std::size_t never = std::numeric_limits<std::size_t>::max();
constexpr std::uint64_t row = page_bytes / sizeof(std::uint32_t);

class FlippingCompute final : public Compute {
 public:
  Task<void> run(std::function<void()> work) override {
    work();
    const std::size_t number = calls++;
    if (flips_always || number == flips_after) *victim |= std::byte{4};
    co_return Status();
  }

  std::byte* victim = nullptr;  // Its bit is 0 in good bytes.
  std::size_t flips_after = never;
  bool flips_always = false;
  std::size_t calls = 0;
};

// Rows that are Chunks, columns of some bytes, and a tensor that is wanted as rank 0 has it.
class TwoRanks {
 public:
  TwoRanks() {
    scene_.publish({{{"columns", {300, 5}, Box{{0, 0}, {300, 2}}, {}},
                     {"rows", {8, row}, Box{{0, 0}, {4, row}}, {}},
                     {"own", {1500}, plan::whole(Shape{1500}), {}}},
                    {{"columns", {300, 5}, Box{{0, 2}, {300, 3}}, {}},
                     {"rows", {8, row}, Box{{4, 0}, {4, row}}, {}}}});
    ShardWish wish;
    for (const SavedPiece& piece : wanted()) wish.tensors.push_back(spec_of(piece));
    wish.joins_shards = true;
    auto shaped = scene_.run(shape_shard(scene_.source(), {0, 1}, std::move(wish)));
    REQUIRE((shaped ? "" : shaped.error().message()) == "");
    shaped_ = std::move(shaped).value();
    memory_ = std::make_unique<storage::PageBuffer>(shaped_.record.bytes);
  }

  Status fill() {
    std::ranges::fill(target(), std::byte{0xee});
    compute.calls = counted = 0;
    storage::TransferHooks hooks;
    hooks.compute = &compute;
    hooks.verified = [this](std::uint64_t bytes) { counted += bytes; };
    return scene_.run(fill_shard(scene_.source(), {0, 1}, shaped_, target(), std::move(hooks)));
  }
  std::byte* first_of(std::string_view tensor) {
    return target().data() + extent_of(tensor).offset;
  }
  bool has_right_bytes() {
    std::vector<SavedPiece> pieces = wanted();
    pieces.push_back({"own", {1500}, plan::whole(Shape{1500}), {}});
    return std::ranges::all_of(pieces, [&](const SavedPiece& piece) {
      const auto numbers = numbers_of(piece);
      const format::Extent extent = extent_of(piece.name);
      return std::ranges::equal(std::as_bytes(std::span(numbers)),
                                target().subspan(extent.offset, extent.bytes));
    });
  }
  bool matches_checksums() {
    const format::ShardRecord& record = shaped_.record;
    for (std::size_t index = 0; index < record.chunk_crcs.size(); ++index) {
      const format::Extent chunk = record.chunk(index);
      if (crc32(target().subspan(chunk.offset, chunk.bytes)) != record.chunk_crcs[index])
        return false;
    }
    return !record.chunk_crcs.empty();
  }

  const std::vector<Crc32>& checksums() const { return shaped_.record.chunk_crcs; }

  FlippingCompute compute;
  std::uint64_t counted = 0;

 private:
  static std::vector<SavedPiece> wanted() {
    return {{"columns", {300, 5}, plan::whole(Shape{300, 5}), {}},
            {"rows", {8, row}, Box{{2, 0}, {5, row}}, {}}};
  }
  std::span<std::byte> target() { return memory_->first(shaped_.record.bytes); }
  format::Extent extent_of(std::string_view tensor) const {
    const auto& tensors = shaped_.record.layout.tensors;
    const auto place = std::ranges::find(tensors, tensor, &format::TensorPlace::name);
    REQUIRE(place != tensors.end());
    return place->extent;
  }

  Scene scene_;
  ShapedShard shaped_;
  std::unique_ptr<storage::PageBuffer> memory_;
};

}  // namespace

TEST_CASE("wanted shard: a bit may flip at any moment, and no checksum fits wrong bytes",
          "[unit][gather]") {
  TwoRanks ranks;
  REQUIRE(ranks.fill());
  REQUIRE(ranks.has_right_bytes());
  REQUIRE(ranks.matches_checksums());
  const std::size_t calls = ranks.compute.calls;
  const std::uint64_t counted = ranks.counted;
  const std::vector<Crc32> good = ranks.checksums();
  for (const char* const tensor : {"columns", "rows", "own"}) {
    ranks.compute.victim = ranks.first_of(tensor);
    int read_again = 0, found_by_reader = 0;
    for (std::size_t after = 0; after < calls; ++after) {
      ranks.compute.flips_after = after;
      const Status filled = ranks.fill();
      REQUIRE((filled ? "" : filled.error().message()) == "");
      REQUIRE(ranks.counted == counted);
      REQUIRE(ranks.checksums() == good);
      const bool is_read_again = ranks.compute.calls > calls;
      read_again += is_read_again;
      if (is_read_again || ranks.matches_checksums()) {
        REQUIRE(ranks.matches_checksums());
        REQUIRE(ranks.has_right_bytes());
      } else {
        ++found_by_reader;
      }
    }
    CAPTURE(tensor);
    // A Chunk of columns also has the first elements of "own".
    CHECK((read_again > 0) == (tensor != std::string_view("rows")));
    CHECK(found_by_reader > 0);
  }
}

TEST_CASE("wanted shard: memory that changes again and again is an error with a name",
          "[unit][gather]") {
  TwoRanks ranks;
  ranks.compute.victim = ranks.first_of("columns");
  ranks.compute.flips_always = true;
  const Status filled = ranks.fill();
  REQUIRE_FALSE(filled);
  CHECK(filled.error().code() == Errc::corruption);
  CHECK_THAT(filled.error().message(), Contains("of rank 0 (tensor \"columns\"") &&
                                           Contains("changed in memory after it was verified"));
}

TEST_CASE("wanted shard: a reader has several parts of a tensor, other ones than were saved",
          "[unit][gather]") {
  const Shape shape = {8, 3};
  Scene scene;
  scene.publish(
      {{{"w[0:4]", shape, Box{{0, 0}, {4, 3}}, {}}, {"w[6:8]", shape, Box{{6, 0}, {2, 3}}, {}}},
       {{"w[4:6]", shape, Box{{4, 0}, {2, 3}}, {}}}});
  const std::vector<SavedPiece> wanted{{"w[0:8,0:1]", shape, Box{{0, 0}, {8, 1}}, {}},
                                       {"w[0:8,2:3]", shape, Box{{1, 2}, {6, 1}}, {}}};
  ShardWish wish;
  for (const SavedPiece& piece : wanted) wish.tensors.push_back(spec_of(piece));
  wish.joins_shards = GENERATE(false, true);
  auto& source = scene.source();
  auto shaped = scene.run(shape_shard(source, {0, 1}, std::move(wish)));
  REQUIRE((shaped ? "" : shaped.error().message()) == "");
  const auto& tensors = shaped->record.layout.tensors;
  REQUIRE(tensors.size() == 2);  // Nothing of it counts as unwanted.
  storage::PageBuffer memory(shaped->record.bytes);
  const auto target = memory.first(shaped->record.bytes);
  const Status filled = scene.run(fill_shard(source, {0, 1}, *shaped, target, {}));
  REQUIRE((filled ? "" : filled.error().message()) == "");
  for (const SavedPiece& piece : wanted) {
    const auto place = std::ranges::find(tensors, piece.name, &format::TensorPlace::name);
    REQUIRE(place != tensors.end());
    const auto numbers = numbers_of(piece);
    CHECK(std::ranges::equal(std::as_bytes(std::span(numbers)),
                             target.subspan(place->extent.offset, place->extent.bytes)));
  }
}

TEST_CASE("wanted shard: where shards are joined, the names of unwanted parts come, and no byte",
          "[unit][gather]") {
  Scene scene;
  const SavedPiece first{"rows", {8, 3}, Box{{0, 0}, {4, 3}}, {}};
  const SavedPiece flat{"flat", {9}, Box{{0}, {5}}, {}};
  scene.publish({{first, flat}, {{"rows", {8, 3}, Box{{4, 0}, {4, 3}}, {}}}});
  ShardWish wish;
  wish.tensors.push_back(spec_of({"rows", {8, 3}, plan::whole(Shape{8, 3}), {}}));
  wish.joins_shards = GENERATE(false, true);
  const bool joins_shards = wish.joins_shards;
  auto& source = scene.source();
  auto shaped = scene.run(shape_shard(source, {0, 1}, std::move(wish)));
  REQUIRE((shaped ? "" : shaped.error().message()) == "");
  const auto& tensors = shaped->record.layout.tensors;
  const auto rest = std::ranges::find(tensors, "flat", &format::TensorPlace::name);
  REQUIRE((rest != tensors.end()) == joins_shards);
  REQUIRE(tensors.size() == (joins_shards ? 2 : 1));
  if (joins_shards) {
    CHECK(rest->extent.bytes == 0);
    CHECK(rest->piece.value().global_shape == std::vector<std::uint64_t>{9});
  }
  storage::PageBuffer memory(shaped->record.bytes);
  const auto target = memory.first(shaped->record.bytes);
  REQUIRE(scene.run(fill_shard(source, {0, 1}, *shaped, target, {})));
}

}  // namespace ckpt::gather
