// ShardPlaces: where the wanted bytes of one shard belong, Chunk by Chunk, and whether they still
// lie there.
//
//   want_* -> for each Chunk: copy, or a source brings it to its places -> holds
//
// Whether a Chunk is there says a checksum of its wanted bytes, taken from the Chunk itself while
// they were copied; of one that a source brought to its places, that in the shard's record. So a
// bit that flips in a place is noticed, whenever it did.
//
// Threads: several may copy and ask at the same time, for different Chunks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/shard_record.hpp"
#include "gather/wants.hpp"
#include "plan/planner.hpp"

namespace ckpt::gather {

class ShardPlaces {
 public:
  struct Facts {
    const plan::Plan& plan;
    const Wants& wants;
    bool keeps_checksums = false;  // Else holds() is not asked.
  };
  // All that `facts` refers to outlives it.
  ShardPlaces(std::shared_ptr<const format::ShardRecord> record, Facts facts)
      : record_(std::move(record)), facts_(facts) {}

  void want_transfer(std::uint32_t number);  // One of the plan.
  void want_bytes(std::uint32_t number);     // Some of those that are wanted as they are.

  // Those of which something is wanted, ascending.
  std::vector<std::size_t> chunks() const;
  std::uint64_t wanted_bytes(std::size_t chunk) const;
  // The places of all bytes of a Chunk; empty: some are not wanted, or twice, or they are many.
  std::vector<std::span<std::byte>> places_of(std::size_t chunk) const;
  // "tensor "w" and 2 more", for errors.
  std::string name_of(std::size_t chunk) const;

  // Copies what is wanted of a Chunk.
  void copy(std::size_t chunk, std::span<const std::byte> bytes);
  // False: some bytes changed since the Chunk came.
  bool holds(std::size_t chunk) const;

 private:
  // The reasons to read a Chunk: numbers of transfers, and of wanted bytes.
  struct Work {
    std::vector<std::uint32_t> transfers;
    std::vector<std::uint32_t> bytes;
    std::optional<Crc32> copied;  // None: a source brought it to its places.
  };

  template <class Use>
  void for_each_place(std::size_t chunk, const Use& use) const;

  const std::shared_ptr<const format::ShardRecord> record_;
  const Facts facts_;
  std::map<std::size_t, Work> work_;  // By Chunk.
};

}  // namespace ckpt::gather
