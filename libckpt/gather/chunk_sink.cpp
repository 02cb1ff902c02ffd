#include "gather/chunk_sink.hpp"

#include "base/assert.hpp"

namespace ckpt::gather {

bool bring(const ChunkSink& sink, const ChunkInMemory& chunk) {
  if (chunk.places.empty()) {
    // In this order: a bit that flips before its byte is copied is found.
    if (sink.copy) sink.copy(chunk.index, chunk.bytes);
    return crc32(chunk.bytes) == chunk.expected;
  }
  std::span<const std::byte> bytes = chunk.bytes;
  std::vector<Crc32> crcs;
  Crc32 all = 0;
  for (const std::span<std::byte> place : chunk.places) {
    CKPT_ASSERT(place.size() <= bytes.size());
    const auto part = bytes.first(place.size());
    const bool is_there = part.data() == place.data();
    crcs.push_back(is_there ? crc32(part) : crc32_copy(place, part));
    all = crc32_combine(all, crcs.back(), place.size());
    bytes = bytes.subspan(place.size());
  }
  CKPT_ASSERT(bytes.empty());
  if (all != chunk.expected) return false;
  if (sink.placed) sink.placed(chunk.index, crcs);
  return true;
}

}  // namespace ckpt::gather
