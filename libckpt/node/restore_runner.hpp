// RestoreRunner: carries a Start out for the trainers of this node: it brings each rank's shard
// into one of the rank's Slots, offers it, and begins or ends the restore with all others.
//
//  1. A copy in this node's memory that the trainer has mapped: offered as it is.
//  2. A copy elsewhere in this node's memory (a replica, an outgrown Slot): copied and verified.
//  3. The peers that hold it, all at once.      4. Storage.
//  5. The good Chunks of copies that are damaged, where no copy is whole (shard_fill.hpp).
// Each copy is verified on arrival and again by the trainer; one that fails is quarantined and the
// next source is tried. When none is left the rank has failed, and all ranks vote again without it.
// A step that another number of ranks saved is put together from its pieces instead, and so is one
// of which the rank captured only parts.
//
// Threads: the engine's. Lifetime: the Job's; its coroutines hold the Job.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "node/replication.hpp"
#include "node/restore_room.hpp"
#include "node/sessions.hpp"
#include "node/shard_fill.hpp"

namespace ckpt::node {

class HeldShards;
class SharedRecords;

// The step that a restore has brought to a trainer.
struct Brought {
  format::StepId at;  // As it was captured.
  RestoreSource source = RestoreSource::own_memory;
  std::uint64_t bytes = 0, bytes_from_storage = 0;
};

class RestoreRunner {
 public:
  RestoreRunner(const JobFacts& facts, JobLife& life, Ranks& ranks, SlotTable& slots,
                Sessions& sessions, Replication& replication, JobStorage& storage)
      : facts_(facts),
        life_(life),
        ranks_(ranks),
        slots_(slots),
        sessions_(sessions),
        replication_(replication),
        storage_(storage),
        room_(facts, life, ranks, slots) {}

  void obey_start();  // The one in the newest decree.
  // By this session's newest restore; none: it began anew, or the restore failed.
  std::optional<Brought> brought_to(std::uint32_t rank, const Session& session) const;

 private:
  void obey_start(Rank& rank, const format::Start& start);
  void announce(const Rank& rank, Session& session, const format::Start& start) const;
  asio::awaitable<void> bring_shard(std::uint32_t rank, SessionId id, format::Start start);
  std::shared_ptr<SharedRecords> records_of(const format::Start& start);
  Task<bool> needs_pieces(std::uint32_t rank, SessionId id, const format::Start& start);
  asio::awaitable<void> hold_own_shard(std::uint32_t rank, SessionId id,
                                       const format::Start& start);
  Task<void> offer_from_any_source(std::uint32_t rank, SessionId id, format::Start start);
  Task<void> offer_from_pieces(std::uint32_t rank, SessionId id, format::Start start);
  struct Origin {                                      // Where the bytes of an offer came from.
    RestoreSource source = RestoreSource::own_memory;  // The farthest of these places.
    std::string name;
    std::uint64_t bytes_from_storage = 0;
  };
  static Origin origin_of(const HeldShards& shards, const format::Start& start,
                          std::uint64_t bytes);
  Task<void> offer(std::uint32_t rank, SessionId id, format::Start start, arena::Lease lease,
                   Origin origin);
  void note_brought(std::uint32_t rank, const Session& session, const Brought& newer);
  BytesVerified send_filling(SessionId id, std::string source_name, std::uint64_t bytes_total);
  ShardFill begin_fill(format::ShardId id, Digest digest, SessionId for_whom);

  const JobFacts& facts_;
  JobLife& life_;
  Ranks& ranks_;
  SlotTable& slots_;
  Sessions& sessions_;
  Replication& replication_;
  JobStorage& storage_;
  RestoreRoom room_;
  std::weak_ptr<SharedRecords> records_;                 // While some restore reads them;
  std::pair<std::uint64_t, std::uint64_t> records_for_;  // of this Start and attempt.
  std::map<std::uint32_t, std::pair<SessionId, Brought>> brought_;  // By rank, to its newest one.
};

}  // namespace ckpt::node
