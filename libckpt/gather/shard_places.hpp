// ShardPlaces: where the wanted bytes of one shard belong, Chunk by Chunk, and whether they still
// lie there.
//
//   want_* -> for each Chunk: copy, or a source brings it to its places -> holds
//
// Where the targets get checksums, those of long runs come from the Chunk itself, while it is
// copied or verified: sums(). A Chunk that goes to many short runs is copied first. A checksum of
// its wanted bytes then says whether it still lies there: holds(). So a bit that flips in a place
// never becomes part of a checksum.
//
// Threads: several may copy and ask at the same time, for different Chunks. copy() and holds() pass
//          over all runs of a Chunk, perhaps a million: they are for the threads of a Compute. The
//          rest takes no longer for many runs.
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

// TargetChunks: one memory that has all targets, and that gets a checksum for each Chunk.
struct TargetChunks {
  std::span<std::byte> memory;
  std::uint64_t chunk_bytes = 0;
};

// RunSum: the checksum of bytes as they were verified on their way to their place.
struct RunSum {
  const std::byte* begin = nullptr;
  std::uint64_t bytes = 0;  // All in one Chunk of the targets.
  Crc32 crc = 0;
};

class ShardPlaces {
 public:
  struct Facts {
    const plan::Plan& plan;
    const Wants& wants;
    std::optional<TargetChunks> targets = std::nullopt;  // None: they get no checksums.
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
  // The Chunk lies in places_of(): the checksum of each.
  void placed(std::size_t chunk, std::span<const Crc32> crcs);
  // Those of a Chunk that has come; empty: its runs are short, and holds() is to be asked.
  const std::vector<RunSum>& sums(std::size_t chunk) const { return work_.at(chunk).sums; }
  // False: some bytes changed since the Chunk was copied.
  bool holds(std::size_t chunk) const;

 private:
  // The reasons to read a Chunk: numbers of transfers, and of wanted bytes.
  struct Work {
    std::vector<std::uint32_t> transfers;
    std::vector<std::uint32_t> bytes;
    std::uint64_t wanted_bytes = 0;
    Crc32 copied = 0;  // Without sums: that of all its wanted bytes.
    std::vector<RunSum> sums;
  };

  template <class Use>
  bool for_each_until(std::size_t chunk, const Use& use) const;
  template <class Use>
  void for_each_place(std::size_t chunk, const Use& use) const;
  template <class Use>
  void for_each_part(std::span<std::byte> place, const Use& use) const;
  bool has_long_runs(std::size_t chunk) const;

  const std::shared_ptr<const format::ShardRecord> record_;
  const Facts facts_;
  std::map<std::size_t, Work> work_;  // By Chunk.
};

}  // namespace ckpt::gather
