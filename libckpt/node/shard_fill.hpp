// ShardFill: brings one shard into a Slot of its rank, from one source after the other.
//
//   own memory -> peers -> storage -> the good Chunks of all that was found damaged
//
// Each source brings the Chunks that are still missing, each verified on arrival. A Chunk that has
// come stays when a source fails: copies that are damaged in different Chunks make one good shard.
// All of them are of the record that was agreed on, so that its checksums say which Chunks are
// good.
//
// Threads: the engine's. Lifetime: that of one restore of one rank, whose coroutine holds the Job.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "node/job_storage.hpp"
#include "node/replication.hpp"
#include "node/restore_room.hpp"

namespace ckpt::node {

// The source of a copy that is not in one of the rank's Slots yet.
struct OwnMemory {};
struct PeerMemory {
  std::vector<std::string> nodes;
};
struct Storage {};
using CopySource = std::variant<OwnMemory, PeerMemory, Storage>;

// "node A", "nodes A, B".
std::string name_of(const std::vector<std::string>& nodes);
std::string name_of(const CopySource& source);

class ShardFill {
 public:
  struct Parts {
    const JobFacts& facts;
    SlotTable& slots;
    Replication& replication;
    JobStorage& storage;
    RestoreRoom& room;
  };
  // Begins to report what comes, from a source of this name, of so many bytes.
  using Report = std::function<BytesVerified(std::string source, std::uint64_t bytes)>;
  ShardFill(Parts parts, format::ShardId id, Digest digest, Report report);
  ~ShardFill();
  ShardFill(const ShardFill&) = delete;
  ShardFill& operator=(const ShardFill&) = delete;

  // Returns the Slot, sealed, once no Chunk is missing. Errors: those of the source, and of
  // RestoreRoom; cancelled (the memory was freed).
  Task<std::shared_ptr<arena::Slot>> fill_from(CopySource source);
  // Fills what is missing still from any damaged copy of these places that has it good. If
  // fill_from() has failed for all sources. Errors: corruption (some Chunk is good nowhere).
  Task<std::shared_ptr<arena::Slot>> fill_from_damaged(SourceChoice places);

  // Why storage did not give all of it; none: it did, or was not asked.
  const std::optional<Error>& storage_error() const { return storage_error_; }
  std::uint64_t bytes_from_storage() const { return bytes_from_storage_; }

 private:
  Task<void> fill_from_here();
  Task<void> fill_from_peers(std::vector<std::string> peers);
  Task<void> fill_from_storage();
  Task<void> read_missing(bool has_some);
  Task<void> read_good_chunks();
  Task<bool> copy_good(const arena::Lease& lease);
  Task<std::shared_ptr<arena::Slot>> seal_if_whole(Status came);
  Status begin(std::shared_ptr<const format::ShardRecord> record);
  bool is_filling() const;
  std::uint64_t verified_bytes() const;  // In the target.
  std::span<std::byte> bytes_of(std::size_t chunk) const;

  const JobFacts& facts_;
  SlotTable& slots_;
  Replication& replication_;
  JobStorage& storage_;
  RestoreRoom& room_;
  const format::ShardId id_;
  const Digest digest_;
  const Report report_;
  std::shared_ptr<arena::Slot> target_;  // Null: nothing has come.
  std::shared_ptr<const format::ShardRecord> record_;
  std::optional<replicate::ChunkSet> have_;  // Verified, in the target.
  std::optional<Error> storage_error_;
  std::uint64_t bytes_from_storage_ = 0;
};

}  // namespace ckpt::node
