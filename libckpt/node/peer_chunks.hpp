// PeerChunks: gives a sink the Chunks of a shard that peers send.
//
// A Chunk with places comes straight into them. Any other comes into a buffer, and is copied from
// there by the threads of a Compute: it may go to a million places.
//
// Threads:  the engine's.
// Lifetime: until the peers have sent all, and the Compute has ended.
// Memory:   a buffer for each Chunk that is on its way, as many at once as connections bring.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/compute.hpp"
#include "gather/chunk_sink.hpp"
#include "replicate/transfer.hpp"

namespace ckpt::node {

class PeerChunks {
 public:
  // The references outlive it.
  PeerChunks(const format::ShardRecord& record, const gather::ChunkSink& sink, Compute* compute)
      : record_(record), sink_(sink), compute_(compute) {}
  PeerChunks(const PeerChunks&) = delete;
  PeerChunks& operator=(const PeerChunks&) = delete;

  // It refers to this.
  replicate::Destination destination();
  // A Chunk of the destination is there, and verified.
  void take(std::size_t index);

 private:
  using Buffer = std::unique_ptr<std::byte[]>;

  // The same for a Chunk until it is taken.
  std::span<std::byte> buffer_of(std::size_t index);
  Task<void> placed(std::size_t index, std::vector<Crc32> crcs);

  const format::ShardRecord& record_;
  const gather::ChunkSink& sink_;
  Compute* const compute_;
  std::map<std::size_t, Buffer> used_;  // By Chunk.
  std::vector<Buffer> free_;
};

}  // namespace ckpt::node
