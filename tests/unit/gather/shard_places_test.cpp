// Goal:   the questions that the engine's thread asks about a Chunk take no longer for many runs.
// Method: a Chunk with so many runs that nobody who passes over them comes to an end. No byte of it
//         exists.
#include "gather/shard_places.hpp"

#include <catch2/catch.hpp>

namespace ckpt::gather {
namespace {

constexpr std::uint64_t runs = std::uint64_t{1} << 40;

// One tensor has every second element.
struct HugeChunk {
  HugeChunk() {
    record->bytes = record->chunk_bytes = 8 * runs;
    record->chunk_crcs.resize(1);
    plan.transfers.push_back({0, 0, 0, 0, 4, {{runs, 8, 4}}});
    WantedPiece wanted;
    wanted.want.name = "w";
    wanted.target = std::span(&first, 4 * runs);  // Never touched.
    wants.pieces.push_back(std::move(wanted));
  }

  std::byte first{};
  plan::Plan plan;
  Wants wants;
  std::shared_ptr<format::ShardRecord> record = std::make_shared<format::ShardRecord>();
};

}  // namespace

TEST_CASE("shard places: nothing but a copy passes over all runs of a chunk", "[unit][gather]") {
  HugeChunk chunk;
  ShardPlaces places(chunk.record, {chunk.plan, chunk.wants});
  places.want_transfer(0);
  CHECK(places.chunks() == std::vector<std::size_t>{0});
  CHECK(places.wanted_bytes(0) == 4 * runs);
  CHECK(places.places_of(0).empty());
  CHECK(places.name_of(0) == "tensor \"w\"");
}

TEST_CASE("shard places: a chunk that all goes to many places is known by the first few",
          "[unit][gather]") {
  HugeChunk chunk;
  Wants& wants = chunk.wants;
  wants.pieces.push_back(wants.pieces.front());
  plan::Transfer other = chunk.plan.transfers.front();
  other.want = 1;
  other.from = 4;
  chunk.plan.transfers.push_back(std::move(other));
  ShardPlaces places(chunk.record, {chunk.plan, chunk.wants});
  places.want_transfer(0);
  places.want_transfer(1);
  CHECK(places.wanted_bytes(0) == 8 * runs);
  CHECK(places.places_of(0).empty());
}

}  // namespace ckpt::gather
