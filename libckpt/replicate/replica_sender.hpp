// ReplicaSender: sends one sealed shard to a peer, until the peer has applied and verified it.
//
//   OFFER (record) -> GRANT (ticket, what it has) -> DATA... <-> PROGRESS... -> APPLIED (digest)
//
// With a base, an earlier step that the peer has too, OFFER_CHANGES names it. If the peer still
// has it, Chunks with the same bytes go as SAME, without a body.
//
// The kernel sends the bytes from the Slot's pages; the record has their checksums. After a lost
// connection, offer the shard again on a new one: Chunks that arrived are not sent again.
#pragma once

#include "replicate/transfer.hpp"
#include "wire/connection.hpp"

namespace ckpt::replicate {

enum class Delivery {
  applied,   // The peer holds the whole shard, verified.
  declined,  // The peer refused it for good: fenced, or useless there.
};

// Needs the connection to itself. It stays usable only after `applied` or a refused offer, and is
// closed otherwise. `declined` is a value and not an error, since `cancelled` only means that the
// connection was closed here, and says nothing about the peer. Errors: the peer's refusal
// (exhausted, not_found, ...), unavailable (lost, stalled or late), cancelled (closed here),
// corruption (on the way, in our copy, or in the peer's answer: find_damage() tests our copy).
Task<Delivery> send_shard(wire::Connection& connection, Clock& clock, SealedShard source,
                          TransferOptions options);

// Base: an earlier step of the same rank, which the peer has verified.
struct Base {
  SealedShard source;  // Ours.
  Digest digest;       // Its record's.
};
Task<Delivery> send_changes(wire::Connection& connection, Clock& clock, SealedShard source,
                            Base base, TransferOptions options);

// Finds the first Chunk of a sealed shard that fails its checksum. Errors: exhausted (no thread for
// it).
Task<std::optional<std::size_t>> find_damage(Compute* compute, SealedShard source);

}  // namespace ckpt::replicate
