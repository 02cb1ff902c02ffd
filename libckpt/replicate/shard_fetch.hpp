// ShardFetch: asks a holder for a shard, and serves other nodes' requests.
//
//   FETCH_RECORD (shard, digest) -> RECORD            the asker makes room
//   FETCH (shard, digest, what it has) -> DATA... <-> PROGRESS... <- APPLIED
//
// The receiver verifies each Chunk, against the record whose digest both named. If one does not
// match, it refuses it, and the holder looks at its own copy before it closes the connection.
#pragma once

#include "replicate/transfer.hpp"
#include "wire/connection.hpp"
#include "wire/message.hpp"

namespace ckpt::replicate {

// From this number on, work on all tensors of a record takes long enough for another thread.
inline constexpr std::size_t tensors_worth_a_thread = 256;

// ShardProvider: the node's engine, as a holder of sealed copies.
class ShardProvider {
 public:
  virtual ~ShardProvider() = default;
  // Errors, sent to the other node: not_found, unavailable.
  virtual Result<SealedShard> lease(const std::string& job, const format::ShardId& shard,
                                    const Digest& digest) = 0;
  // A Chunk of this copy, which `lease` gave, no longer matches its checksum: quarantine the copy.
  virtual void damaged(const std::string& job, const SealedShard& copy, std::size_t chunk) = 0;
};

// Errors: not_found, unavailable, corruption (the record does not have this digest).
Task<std::shared_ptr<const format::ShardRecord>> fetch_record(wire::Connection& connection,
                                                              Clock& clock, format::ShardId shard,
                                                              Digest digest,
                                                              TransferOptions options);

// Fills the Chunks of `target` that are not in `have`. Success: all are there and verified. The
// memory of `target` stays valid until this returns; `have` must hold only Chunks that were
// verified there. options.on_chunk reports each new Chunk, so that
// the next holder needs to send only the rest. Errors: corruption (in the holder's copy, or on the
// way), not_found, unavailable.
Task<void> fetch_shard(wire::Connection& connection, Clock& clock,
                       std::shared_ptr<const format::ShardRecord> record, Destination target,
                       ChunkSet have, TransferOptions options);

// Answers one FETCH_RECORD or FETCH that was just read. Success includes a refused request. After
// an error the connection is closed.
Task<void> serve_record(wire::Connection& connection, Clock& clock, std::string job,
                        wire::Message request, ShardProvider& provider, TransferOptions options);
Task<void> serve_fetch(wire::Connection& connection, Clock& clock, std::string job,
                       wire::Message request, ShardProvider& provider, TransferOptions options);

}  // namespace ckpt::replicate
