// ChunkSink: takes the Chunks of a shard, each once, when it is verified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/checksum.hpp"

namespace ckpt::gather {

struct ChunkSink {
  // Empty `bytes`: they lie in their places.
  std::function<void(std::size_t index, std::span<const std::byte> bytes)> take;
  // Where all bytes of a Chunk belong, in their order: a source may put them there before it has
  // verified them. Empty, or null: they are passed to `take`.
  std::function<std::vector<std::span<std::byte>>(std::size_t index)> places;
  // Brings a Chunk to its places, on any thread, other Chunks at the same time, and perhaps before
  // it is verified; `take` then gets no bytes. Empty: `take` does it.
  std::function<void(std::size_t index, std::span<const std::byte> bytes)> copy;
  // The checksum of each place, once a verified Chunk lies in its places: every source that asks
  // for `places` calls it, before `take`, on any thread. Null: nobody asks.
  std::function<void(std::size_t index, std::span<const Crc32> crcs)> placed;
  // How much of a Chunk is wanted, for a source that counts. Null: nobody asks.
  std::function<std::uint64_t(std::size_t index)> wanted_bytes;

  std::vector<std::span<std::byte>> places_of(std::size_t index) const {
    return places ? places(index) : std::vector<std::span<std::byte>>();
  }
};

// ChunkInMemory: one that lies in memory for long, so that bits in it may flip at any time.
struct ChunkInMemory {
  std::size_t index = 0;
  std::span<const std::byte> bytes;
  Crc32 expected = 0;
  std::vector<std::span<std::byte>> places;  // As the sink named them.

  // Whether bring() takes it to its places; else `take` gets the bytes.
  bool is_brought(const ChunkSink& sink) const { return !places.empty() || sink.copy != nullptr; }
};

// Brings the Chunk to its places, if it has some or the sink copies; places in which it lies
// already are only read. Returns whether what was copied matches the checksum. On any thread.
bool bring(const ChunkSink& sink, const ChunkInMemory& chunk);

}  // namespace ckpt::gather
