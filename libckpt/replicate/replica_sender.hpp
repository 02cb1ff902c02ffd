// ReplicaSender: brings one sealed shard to a peer, until the peer has it applied and verified.
//
//   OFFER (record) -> GRANT (ticket, what it has) -> DATA... <-> PROGRESS... -> APPLIED (digest)
//
// The bytes go from the Slot's pages to the network by the kernel; their checksums are those of the
// record. After a lost connection, offer the shard again on a new one: what arrived is not resent.
#pragma once

#include "replicate/transfer.hpp"
#include "wire/connection.hpp"

namespace ckpt::replicate {

enum class Delivery {
  applied,   // The peer holds the whole shard, verified.
  declined,  // The peer refused it for good: fenced, or of no use there any more.
};

// Uses the connection alone, and leaves it ready for the next request only when it is applied or
// the offer itself was refused; otherwise it is closed. That the peer declined is a value and no
// error: a connection that was closed here reports `cancelled` too, and says nothing of the peer.
// Errors: what the peer refused with (exhausted, not_found, ...), unavailable (lost, stalled or
//         late), cancelled (closed here), corruption (on the way, of our bytes, or what the peer
//         said: find_damage() tells whether it is ours).
Task<Delivery> send_shard(wire::Connection& connection, Clock& clock, ShardSource source,
                          TransferOptions options);

// The first Chunk of a sealed shard that its checksum does not match. Errors: exhausted (no thread
// for it).
Task<std::optional<std::size_t>> find_damage(Compute* compute, ShardSource source);

}  // namespace ckpt::replicate
