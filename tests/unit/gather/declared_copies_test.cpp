// Goal:   of copies that ranks declared, the nearest is read, and another one if that is bad in
// every
//         place; not for ever, and not where nobody declared one.
// Method: real shards on a disk in memory, behind a source that says where they are and fails.
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "gather/piece_reader.hpp"
#include "unit/gather/numbered_scene.hpp"

namespace ckpt::gather {
namespace {

using Catch::Matchers::Contains;

// Says where shards are, and which of them were read; those that are bad give nothing.
class Placed final : public ShardSource {
 public:
  explicit Placed(ShardSource& source) : source_(source) {}

  std::uint32_t shard_count() const override { return source_.shard_count(); }
  Nearness nearness(std::uint32_t rank) const override {
    const auto found = near.find(rank);
    return found == near.end() ? Nearness::storage : found->second;
  }
  Task<Excerpt> look(std::uint32_t rank, std::vector<std::string> names) override {
    return source_.look(rank, std::move(names));
  }
  Task<std::shared_ptr<const format::ShardRecord>> whole_record(std::uint32_t rank) override {
    return source_.whole_record(rank);
  }
  Task<void> read(std::shared_ptr<const format::ShardRecord> record,
                  std::vector<std::size_t> chunks, ChunkSink sink,
                  const storage::TransferHooks& hooks) override {
    const std::uint32_t rank = record->id.rank;
    order.push_back(rank);
    const std::string text = "rank " + std::to_string(rank) + " is bad everywhere";
    if (const auto why = bad.find(rank); why != bad.end()) co_return fail(why->second, text);
    const auto rotten = bad_chunks.find(rank);
    const bool is_bad = rotten != bad_chunks.end() && std::erase(chunks, rotten->second) > 0;
    auto read = co_await source_.read(std::move(record), std::move(chunks), std::move(sink), hooks);
    if (is_bad) co_return fail(Errc::corruption, text);
    co_return read;
  }
  std::vector<std::uint32_t> ranks_read() {
    std::ranges::sort(order);
    return std::exchange(order, {});
  }

  std::map<std::uint32_t, Nearness> near;
  std::map<std::uint32_t, Errc> bad;
  std::map<std::uint32_t, std::size_t> bad_chunks;
  std::vector<std::uint32_t> order;  // In which shards were read.

 private:
  ShardSource& source_;
};

// Each of the ranks has all of `w`, and says so; rank 0 alone has `first`, and
// the last but one has the rows behind.
std::vector<std::vector<SavedPiece>> copies_of(std::uint32_t count) {
  const Shape shape = {64, 16};
  std::vector<std::vector<SavedPiece>> saved(count);
  for (std::uint32_t rank = 0; rank < count; ++rank)
    saved[rank] = {{"w", {128, 16}, Box{{0, 0}, {64, 16}}, {}}};
  saved[count - 2].push_back({"w[64:96]", {128, 16}, Box{{64, 0}, {32, 16}}, {}});
  saved[0].push_back({"first", {9}, plan::whole(Shape{9}), {}});
  return saved;
}

// All of what the ranks have of `w`, as a reader of rank 0 gets it.
struct CopyReader {
  explicit CopyReader(std::uint32_t count) : scene(), saved(copies_of(count)) {
    scene.publish(saved);
    source.emplace(scene.source());
  }
  static Task<void> checked(CopyReader& self) {
    ++self.checksums;
    co_return Status();
  }
  Status read(const SavedPiece& want, std::vector<WantedBytes> bytes = {}) {
    numbers.assign(plan::count_of(want.region), 0xffff'ffffU);
    WantedPiece wanted;
    wanted.want = {want.name, DType::u32, want.shape, want.region, want.order};
    if (want.name == "w") wanted.part_names = {"w[64:96]"};
    wanted.target = std::as_writable_bytes(std::span(numbers));
    storage::TransferHooks hooks;
    counted = 0;
    hooks.verified = [this](std::uint64_t more) { counted += more; };
    if (takes_checksums) {
      TakeChecksums take = [this](const std::vector<RunSum>&) { return checked(*this); };
      const TargetChunks targets{wanted.target, page_bytes};
      return scene.run(read_pieces(*source, {0, source->shard_count()},
                                   {{wanted}, std::move(bytes)}, hooks, targets, std::move(take)));
    }
    return scene.run(
        read_pieces(*source, {0, source->shard_count()}, {{wanted}, std::move(bytes)}, hooks));
  }

  Scene scene;
  std::vector<std::vector<SavedPiece>> saved;
  std::optional<Placed> source;
  std::vector<std::uint32_t> numbers;
  std::uint64_t counted = 0;
  bool takes_checksums = false;
  int checksums = 0;
};

}  // namespace

TEST_CASE("declared copies: of declared copies the nearest is read", "[unit][gather]") {
  CopyReader reader(5);
  const SavedPiece& want = reader.saved[0][0];
  const auto ranks_read = [&] {
    REQUIRE(reader.read(want));
    CHECK(reader.numbers == numbers_of(want));
    CHECK(reader.counted == 4 * reader.numbers.size());
    return reader.source->ranks_read();
  };
  CHECK(ranks_read() == std::vector<std::uint32_t>{0});
  reader.source->near = {{3, Nearness::peer_memory}, {4, Nearness::peer_memory}};
  CHECK(ranks_read() == std::vector<std::uint32_t>{3});
  reader.source->near[4] = Nearness::own_memory;
  CHECK(ranks_read() == std::vector<std::uint32_t>{4});
}

TEST_CASE("declared copies: a shard that is bad everywhere gives way to a declared copy",
          "[unit][gather]") {
  const Errc why = GENERATE(Errc::corruption, Errc::unavailable, Errc::io, Errc::not_found);
  CopyReader reader(5);
  reader.takes_checksums = GENERATE(false, true);
  reader.source->near = {{2, Nearness::own_memory}, {1, Nearness::peer_memory}};
  reader.source->bad = {{2, why}};
  const SavedPiece& want = reader.saved[0][0];
  SECTION("one, and the next one has it") {
    REQUIRE(reader.read(want));
    CHECK(reader.numbers == numbers_of(want));
    CHECK(reader.source->order == std::vector<std::uint32_t>{2, 1});
    CHECK(reader.counted <= 4 * reader.numbers.size());
  }
  SECTION("two") {
    reader.source->bad[1] = why;
    REQUIRE(reader.read(want));
    CHECK(reader.numbers == numbers_of(want));
    CHECK(reader.source->order == std::vector<std::uint32_t>{2, 1, 0});
    CHECK(reader.checksums == (reader.takes_checksums ? 1 : 0));
  }
  SECTION("of two pieces, one of which has no other copy") {
    SavedPiece all = want;
    all.region = Box{{0, 0}, {96, 16}};
    REQUIRE(reader.read(all));
    CHECK(reader.numbers == numbers_of(all));
    const std::set<std::uint32_t> read(reader.source->order.begin(), reader.source->order.end());
    CHECK(read == std::set<std::uint32_t>{1, 2, 3});
    CHECK(reader.counted <= 4 * reader.numbers.size());
  }
  SECTION("but not for ever") {
    reader.source->bad[1] = reader.source->bad[0] = why;
    const Status read = reader.read(want);
    REQUIRE_FALSE(read);
    CHECK(read.error().code() == why);
    CHECK_THAT(read.error().message(), Contains("rank 0 is bad everywhere"));
    CHECK(reader.source->order == std::vector<std::uint32_t>{2, 1, 0});
  }
}

TEST_CASE("declared copies: a bad shard of which something has no copy fails the read",
          "[unit][gather]") {
  CopyReader reader(3);
  reader.source->bad = {{0, Errc::corruption}};
  SECTION("a tensor") {
    CHECK_FALSE(reader.read(reader.saved[0][1]));
    CHECK(reader.source->order == std::vector<std::uint32_t>{0});
  }
  SECTION("bytes that are wanted as they are") {
    std::vector<std::byte> bytes(8);
    const Status read = reader.read(reader.saved[0][0], {{0, 0, bytes}});
    REQUIRE_FALSE(read);
    CHECK_THAT(read.error().message(), Contains("rank 0 is bad everywhere"));
    CHECK(std::ranges::count(reader.source->order, 0u) == 2);
  }
  SECTION("bytes that are wanted of a shard that is gone") {
    reader.source->bad = {{0, Errc::unavailable}};
    std::vector<std::byte> bytes(8);
    CHECK_FALSE(reader.read(reader.saved[0][0], {{0, 0, bytes}}));
    CHECK(reader.source->order == std::vector<std::uint32_t>{0});
  }
  SECTION("bytes alone, of which no other plan takes less") {
    std::vector<std::byte> bytes(8);
    reader.source->near = {{1, Nearness::own_memory}};
    CHECK_FALSE(reader.read(reader.saved[0][0], {{0, 0, bytes}}));
    CHECK(std::ranges::count(reader.source->order, 0u) == 1);
  }
  SECTION("for a reason that no copy mends") {
    reader.source->bad = {{0, Errc::cancelled}};
    const Status read = reader.read(reader.saved[0][0]);
    REQUIRE_FALSE(read);
    CHECK(read.error().code() == Errc::cancelled);
  }
}

TEST_CASE("declared copies: bytes of a shard are read, although another Chunk of it is bad",
          "[unit][gather]") {
  CopyReader reader(3);
  const SavedPiece& want = reader.saved[0][0];  // In Chunk 1, behind the header.
  std::vector<std::uint32_t> first(9);          // In Chunk 2.
  const WantedBytes bytes{0, 2 * page_bytes, std::as_writable_bytes(std::span(first))};
  SECTION("that of a tensor, which comes from another rank") {
    reader.source->bad_chunks = {{0, 1}};
    REQUIRE(reader.read(want, {bytes}));
    CHECK(reader.numbers == numbers_of(want));
    CHECK(first == numbers_of(reader.saved[0][1]));
    CHECK(std::ranges::count(reader.source->order, 1u) == 1);
  }
  SECTION("but not their own") {
    reader.source->bad_chunks = {{0, 2}};
    const Status read = reader.read(want, {bytes});
    REQUIRE_FALSE(read);
    CHECK(read.error().code() == Errc::corruption);
  }
}

}  // namespace ckpt::gather
