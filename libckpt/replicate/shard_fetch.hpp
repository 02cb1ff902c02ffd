// ShardFetch: asks a holder for a shard, and serves those who ask.
//
//   FETCH_RECORD (shard, digest) -> RECORD            the asker makes room
//   FETCH (shard, digest, what it has) -> DATA... <-> PROGRESS... <- APPLIED
//
// The holder verifies each Chunk before it is sent and the asker again on arrival, against the
// record whose digest both named.
#pragma once

#include "replicate/transfer.hpp"
#include "wire/connection.hpp"
#include "wire/message.hpp"

namespace ckpt::replicate {

// ShardProvider: the node's engine, as a holder of sealed copies.
class ShardProvider {
 public:
  virtual ~ShardProvider() = default;
  // Errors, told to the asker: not_found, unavailable.
  virtual Result<ShardSource> lease(const std::string& job, const format::ShardId& shard,
                                    const Digest& digest) = 0;
  // A Chunk of our copy no longer matches its checksum: quarantine it.
  virtual void damaged(const std::string& job, const format::ShardId& shard, const Digest& digest,
                       std::size_t chunk) = 0;
};

// Errors: not_found, unavailable, corruption (the record is not the one of this digest).
Task<std::shared_ptr<const format::ShardRecord>> fetch_record(wire::Connection& connection,
                                                              Clock& clock, format::ShardId shard,
                                                              Digest digest,
                                                              TransferOptions options);

// Fills the Chunks of `target` that are not in `have`. Success: all are there and verified.
// `target` has at least record->bytes and must stay valid until this returns; `have` must hold only
// Chunks that were verified in this very memory. options.on_chunk tells of each new one, so that
// the next holder need only be asked for the rest. Errors: corruption (the holder's copy, or a
// Chunk on its way), not_found, unavailable.
Task<void> fetch_shard(wire::Connection& connection, Clock& clock,
                       std::shared_ptr<const format::ShardRecord> record,
                       std::span<std::byte> target, ChunkSet have, TransferOptions options);

// Answers one FETCH_RECORD or FETCH that was just read. An error means that the connection was
// closed; a refused request is success.
Task<void> serve_record(wire::Connection& connection, Clock& clock, std::string job,
                        wire::Message request, ShardProvider& provider, TransferOptions options);
Task<void> serve_fetch(wire::Connection& connection, Clock& clock, std::string job,
                       wire::Message request, ShardProvider& provider, TransferOptions options);

}  // namespace ckpt::replicate
