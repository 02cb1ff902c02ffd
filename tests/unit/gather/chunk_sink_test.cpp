// Goal:   a Chunk in memory comes to its places, and one that is damaged by then is noticed.
// Method: a sink whose copy flips a bit of the Chunk before or after it copies.
#include "gather/chunk_sink.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

namespace ckpt::gather {
namespace {

class SinkScene {
 public:
  SinkScene() {
    for (std::size_t index = 0; index < bytes.size(); ++index)
      bytes[index] = static_cast<std::byte>(index * 7);
    good = bytes;
    chunk = {3, bytes, crc32(bytes), {}};
  }
  void copies_and_flips(bool is_early) {
    sink.copy = [this, is_early](std::size_t index, std::span<const std::byte> from) {
      CHECK(index == 3);
      if (is_early) bytes[50] ^= std::byte{1};
      std::memcpy(target.data(), from.data(), from.size());
      if (!is_early) target[50] ^= std::byte{1};
    };
  }

  std::array<std::byte, 100> bytes{};
  std::array<std::byte, 100> good{};
  std::array<std::byte, 100> target{};
  ChunkSink sink;
  ChunkInMemory chunk;
};

}  // namespace

TEST_CASE("chunk sink: a chunk comes to all of its places", "[unit][gather]") {
  SinkScene scene;
  const std::span<std::byte> target(scene.target);
  scene.chunk.places = {target.subspan(60, 40), target.first(60)};
  CHECK(scene.chunk.is_brought(scene.sink));
  CHECK(bring(scene.sink, scene.chunk));
  CHECK(std::ranges::equal(target.subspan(60), std::span(scene.good).first(40)));
  CHECK(std::ranges::equal(target.first(60), std::span(scene.good).subspan(40)));
  scene.bytes[99] ^= std::byte{1};
  CHECK_FALSE(bring(scene.sink, scene.chunk));
}

TEST_CASE("chunk sink: the checksum of each place is reported, if the chunk is good",
          "[unit][gather]") {
  SinkScene scene;
  const std::span<std::byte> target(scene.target);
  std::vector<Crc32> crcs;
  scene.sink.placed = [&](std::size_t index, std::span<const Crc32> found) {
    CHECK(index == 3);
    crcs.assign(found.begin(), found.end());
  };
  scene.chunk.places = {target.first(60), target.subspan(60, 40)};
  const std::span<const std::byte> good(scene.good);
  const std::vector<Crc32> right = {crc32(good.first(60)), crc32(good.subspan(60))};
  SECTION("by a copy") {
    CHECK(bring(scene.sink, scene.chunk));
    CHECK(crcs == right);
  }
  SECTION("of a chunk that was read into its places") {
    std::ranges::copy(scene.good, scene.target.begin());
    scene.chunk.bytes = scene.target;
    CHECK(bring(scene.sink, scene.chunk));
    CHECK(crcs == right);
    CHECK(scene.target == scene.good);
  }
  SECTION("not of a damaged one") {
    scene.bytes[99] ^= std::byte{1};
    CHECK_FALSE(bring(scene.sink, scene.chunk));
    CHECK(crcs.empty());
  }
}

TEST_CASE("chunk sink: a bit that flips before it is copied is noticed", "[unit][gather]") {
  SinkScene scene;
  scene.copies_and_flips(/*is_early=*/true);
  CHECK(scene.chunk.is_brought(scene.sink));
  CHECK_FALSE(bring(scene.sink, scene.chunk));
}

TEST_CASE("chunk sink: what happens to the copy says nothing about the chunk", "[unit][gather]") {
  SinkScene scene;
  scene.copies_and_flips(/*is_early=*/false);
  CHECK(bring(scene.sink, scene.chunk));
}

TEST_CASE("chunk sink: a chunk without places is only verified", "[unit][gather]") {
  SinkScene scene;
  CHECK_FALSE(scene.chunk.is_brought(scene.sink));
  CHECK(bring(scene.sink, scene.chunk));
  scene.bytes[0] ^= std::byte{1};
  CHECK_FALSE(bring(scene.sink, scene.chunk));
}

}  // namespace ckpt::gather
