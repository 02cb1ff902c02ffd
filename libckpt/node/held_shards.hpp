// HeldShards: the shards of a restored step as they lie in the memory of nodes, ours first, and on
// storage where no memory has them.
//
// A Chunk that fails its checksum here is taken from another copy on this node, and else asked of
// the peers that the Start names, and then of storage. The copies that readers put aside on this
// node come last: other Chunks of them may be good.
//
// Threads: the engine's. Lifetime: that of one restore of one rank. It holds nothing of the job
//          between calls.
// Memory: 64 MiB of records, which the ranks of a node share, so that a small job's are fetched
// once.
//         Those of a large job come again with each look; a read needs only what remains of a
//         record without its tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "arena/slot.hpp"
#include "format/start.hpp"
#include "gather/shard_source.hpp"
#include "node/job_storage.hpp"
#include "node/replication.hpp"
#include "node/shared_records.hpp"
#include "node/slot_table.hpp"

namespace ckpt::node {

class HeldShards final : public gather::ShardSource {
 public:
  struct Parts {
    const JobFacts& facts;
    SlotTable& slots;
    Replication& replication;
    JobStorage& storage;
    std::shared_ptr<SharedRecords> records;  // For the same Start.
  };
  // `start` has a base.
  HeldShards(Parts parts, const format::Start& start)
      : facts_(parts.facts),
        slots_(parts.slots),
        replication_(parts.replication),
        storage_(parts.storage),
        records_(std::move(parts.records)),
        start_(start) {}

  std::uint32_t shard_count() const override;
  gather::Nearness nearness(std::uint32_t rank) const override;
  Task<gather::Excerpt> look(std::uint32_t rank, std::vector<std::string> names) override;
  Task<std::shared_ptr<const format::ShardRecord>> whole_record(std::uint32_t rank) override;
  Task<void> read(std::shared_ptr<const format::ShardRecord> record,
                  std::vector<std::size_t> chunks, gather::ChunkSink sink,
                  const storage::TransferHooks& hooks) override;

  // The peers that some bytes came from.
  const std::set<std::string>& peers_read() const { return peers_read_; }
  bool was_storage_read() const { return was_storage_read_; }
  // Wanted bytes by source, without records and repeated reads.
  std::uint64_t bytes_from_memory() const { return bytes_from_memory_; }
  std::uint64_t bytes_from_storage() const { return bytes_from_storage_; }

 private:
  std::shared_ptr<arena::Slot> held_here(std::uint32_t rank) const;
  std::vector<PutAside::SharedLease> damaged_here(std::uint32_t rank) const;
  std::vector<std::string> peers_of(std::uint32_t rank) const;
  Task<void> read_here(const arena::Lease& lease, std::vector<std::size_t> chunks,
                       const gather::ChunkSink& sink, Compute* compute);
  Task<void> read_chunk_here(const arena::Lease& lease, std::size_t index,
                             const gather::ChunkSink& sink, Compute* compute, bool& is_damaged);
  Task<void> read_from_peers(std::shared_ptr<const format::ShardRecord> record,
                             std::vector<std::size_t> chunks, const gather::ChunkSink& sink,
                             Compute* compute);
  Task<std::shared_ptr<const format::ShardRecord>> fetch_record(std::uint32_t rank);
  Task<void> read_from_storage(std::uint32_t rank, std::vector<std::size_t> chunks,
                               gather::ChunkSink sink, const storage::TransferHooks& hooks);
  Error not_in_memory(std::uint32_t rank, std::optional<Error> why) const;
  Error storage_failed(std::uint32_t rank, Error error, std::optional<Error> memory);

  const JobFacts& facts_;
  SlotTable& slots_;
  Replication& replication_;
  JobStorage& storage_;
  const std::shared_ptr<SharedRecords> records_;  // Those that come from elsewhere.
  const format::Start start_;
  std::set<std::string> peers_read_;
  bool was_storage_read_ = false;
  std::uint64_t bytes_from_memory_ = 0, bytes_from_storage_ = 0;
};

// A Start that only says where the shards of a step lie: for readers that restore nothing. Each of
// them has a copy.
format::Start start_of_held(format::StepId at, const agree::StepCopies& copies);
// Keeps the Start.
std::shared_ptr<gather::ShardSource> open_held(HeldShards::Parts parts, format::Start start);

}  // namespace ckpt::node
