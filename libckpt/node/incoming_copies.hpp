// IncomingCopies: copies that peers give this node, from their offer until they are sealed.
//
//   offered --> receiving --all Chunks verified--> sealed
//                ^     |
//                |     v
//              broken off: its Slot stays for the next offer of the same copy, until it is needed
//
// Threads: the engine's. Lifetime: Replication's.
#pragma once

#include <map>
#include <memory>

#include "arena/slot.hpp"
#include "node/giving_way.hpp"
#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/slot_table.hpp"
#include "replicate/replica_receiver.hpp"

namespace ckpt::node {

class IncomingCopies final : public replicate::ReplicaSink {
 public:
  IncomingCopies(const JobFacts& facts, JobLife& life, SlotTable& slots, GivingWay& giving_way)
      : facts_(facts), life_(life), slots_(slots), giving_way_(giving_way) {}

  Result<replicate::ReplicaTarget> reserve(const replicate::ShardOffer& offer) override;
  void base_damaged(const replicate::SealedShard& base, std::size_t chunk) override;
  void chunk_applied(std::uint64_t ticket, std::size_t index) override;
  Status sealed(std::uint64_t ticket) override;
  void abandoned(std::uint64_t ticket) override;

  // A reception of the rank that broke off gives its Slot back. False: there is none.
  bool make_room(std::uint32_t rank);
  void memory_freed();  // They have no room any more.

 private:
  struct Receiving {
    std::shared_ptr<arena::Slot> slot;  // Null: we have the shard already.
    std::shared_ptr<const format::ShardRecord> record;
    Digest digest;
    replicate::ChunkSet applied;
    std::weak_ptr<void> hold;  // Alive while a connection may still write into the Slot.
    bool is_freed = false;     // The job's memory was freed meanwhile: of no use any more.
  };

  const JobFacts& facts_;
  JobLife& life_;
  SlotTable& slots_;
  GivingWay& giving_way_;
  std::map<std::uint64_t, Receiving> receiving_;  // By ticket.
  std::uint64_t next_ticket_ = 1;
};

}  // namespace ckpt::node
