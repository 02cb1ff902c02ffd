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

// Success: the peer holds the whole shard, verified. Uses the connection alone, and leaves it ready
// for the next request only on success or when the peer refused the offer.
// Errors: what the peer refused with (exhausted, cancelled: fenced, ...), unavailable (lost,
// stalled
//         or late), corruption (our bytes, or what the peer said).
Task<void> send_shard(wire::Connection& connection, Clock& clock, ShardSource source,
                      TransferOptions options);

}  // namespace ckpt::replicate
