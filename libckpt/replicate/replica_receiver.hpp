// ReplicaReceiver: receives a peer's shard into memory that the node's engine grants.
//
// No byte is written outside the granted span. Every Chunk is verified as it is read into place.
// APPLIED is sent only after all are verified and the engine has sealed the replica.
#pragma once

#include "replicate/transfer.hpp"
#include "wire/handshake.hpp"
#include "wire/message.hpp"

namespace ckpt::replicate {

struct ShardOffer {
  wire::PeerIdentity from;
  std::uint64_t timeline = 0;  // The sender's: the sink refuses older ones.
  std::shared_ptr<const format::ShardRecord> record;
  Digest digest;                                // digest_of(*record).
  std::optional<CopyName> base = std::nullopt;  // SAME may name Chunks of this copy.
};

struct ReplicaTarget {
  std::uint64_t ticket = 0;    // The sink's unique name for this grant.
  std::span<std::byte> bytes;  // At least record->bytes; may be empty if all are applied.
  ChunkSet applied;            // Verified in an earlier attempt; one bit for each Chunk.
  std::shared_ptr<void> hold;  // While the receiver has it, it may write into `bytes`.
  std::optional<SealedShard> base = std::nullopt;  // The offer's, if it is here; leased.
};

// ReplicaSink: the node's engine. All calls come from the connection's thread.
class ReplicaSink {
 public:
  virtual ~ReplicaSink() = default;
  // Errors, sent to the peer: exhausted, cancelled (fenced), not_found (unknown run), unavailable
  // (busy). One grant per shard at a time: a second offer is refused until the first one is sealed
  // or abandoned, and its hold released.
  virtual Result<ReplicaTarget> reserve(const ShardOffer& offer) = 0;
  // The base that `reserve` granted is damaged: the shard is offered again, and must not get it
  // then.
  virtual void base_damaged(const SealedShard& base, std::size_t chunk) = 0;
  virtual void chunk_applied(std::uint64_t ticket, std::size_t index) = 0;
  // Every Chunk is verified. If this succeeds, the peer counts a copy.
  virtual Status sealed(std::uint64_t ticket) = 0;
  // The connection ended first. Applied Chunks may be kept for the next offer.
  virtual void abandoned(std::uint64_t ticket) = 0;
};

// Answers one OFFER that was just read. Success includes a refused offer. After an error the
// connection is closed.
Task<void> receive_shard(wire::Connection& connection, Clock& clock, wire::PeerIdentity from,
                         wire::Message offer, ReplicaSink& sink, TransferOptions options);

}  // namespace ckpt::replicate
