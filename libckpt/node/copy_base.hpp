// CopyBase: an earlier step of a rank at both ends of a copy, of which unchanged Chunks are named
// instead of sent.
//
// Threads: the engine's.
#pragma once

#include <memory>
#include <optional>
#include <set>

#include "node/owed_copies.hpp"
#include "node/slot_table.hpp"
#include "replicate/replica_receiver.hpp"
#include "replicate/replica_sender.hpp"

namespace ckpt::node {

// CopiesSent: bytes of Chunks that peers got from this node since it opened the job.
struct CopiesSent {
  std::uint64_t bytes = 0;
  std::uint64_t bytes_unchanged = 0;  // Named instead: the peers had them.
};

// Whether SAME may name Chunks of the earlier one: of the same rank, timeline and tensors. The
// beliefs of a node on another timeline may be from before a restore.
bool is_base(const format::ShardRecord& earlier, const format::ShardRecord& record);

// The slot is sealed, and leased from here on.
replicate::SealedShard source_of(std::shared_ptr<arena::Slot> slot);
replicate::SealedShard source_of(std::shared_ptr<const arena::Lease> lease);
// The Lease of one that source_of made.
const arena::Lease& lease_of(const replicate::SealedShard& source);

// The newest base of `record` that is held here and among those that the target was `given`.
std::optional<replicate::Base> base_for(const SlotTable& slots, const format::ShardRecord& record,
                                        const std::set<Copy>& given);
// The offer's, if it is held here and is one, whatever the peer believes.
std::optional<replicate::SealedShard> base_of(const SlotTable& slots,
                                              const replicate::ShardOffer& offer);

// Sends by send_changes() or, without a base, by send_shard(), and counts the bytes. `sent` stays
// valid meanwhile.
Task<replicate::Delivery> deliver(wire::Connection& connection, Clock& clock,
                                  replicate::SealedShard source,
                                  std::optional<replicate::Base> base,
                                  replicate::TransferOptions options, CopiesSent& sent);

}  // namespace ckpt::node
