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
  Crc32 crc = 0;
  for (const std::span<std::byte> place : chunk.places) {
    CKPT_ASSERT(place.size() <= bytes.size());
    crc = crc32_copy(place, bytes.first(place.size()), crc);
    bytes = bytes.subspan(place.size());
  }
  CKPT_ASSERT(bytes.empty());
  return crc == chunk.expected;
}

}  // namespace ckpt::gather
