// ReplicaReceiver: takes what a peer offers into the memory that the node's engine grants.
//
// Not one byte is written outside the granted span, every Chunk is verified as it is read into
// place, and APPLIED is said only after all were verified and the engine sealed the replica.
#pragma once

#include "replicate/transfer.hpp"
#include "wire/handshake.hpp"
#include "wire/message.hpp"

namespace ckpt::replicate {

struct Offer {
  wire::PeerIdentity from;
  std::uint64_t timeline = 0;  // The sender's: the sink fences older ones.
  std::shared_ptr<const format::ShardRecord> record;
  Digest digest;  // digest_of(*record).
};

struct ReplicaTarget {
  std::uint64_t ticket = 0;    // The sink's own name for this grant; no two are alike.
  std::span<std::byte> bytes;  // At least record->bytes; may be empty where all is applied.
  ChunkSet applied;            // Of an earlier attempt, verified then; record's number of Chunks.
  std::shared_ptr<void> hold;  // Until it is released, the receiver may still write into `bytes`.
};

// ReplicaSink: the node's engine. All calls come from the connection's thread.
class ReplicaSink {
 public:
  virtual ~ReplicaSink() = default;
  // Errors, told to the peer: exhausted, cancelled (fenced), not_found (unknown run), unavailable
  // (busy). One grant per shard at a time: until the last one was sealed or abandoned, and its hold
  // released, a second offer of it is refused.
  virtual Result<ReplicaTarget> reserve(const Offer& offer) = 0;
  virtual void chunk_applied(std::uint64_t ticket, std::size_t index) = 0;
  // All Chunks are verified. Its success is what the peer counts as a copy.
  virtual Status sealed(std::uint64_t ticket) = 0;
  // The connection ended first. What was applied may be kept for the next offer.
  virtual void abandoned(std::uint64_t ticket) = 0;
};

// Answers one OFFER that was just read. An error means that the connection was closed; a refused
// offer is success.
Task<void> receive_shard(wire::Connection& connection, Clock& clock, wire::PeerIdentity from,
                         wire::Message offer, ReplicaSink& sink, TransferOptions options);

}  // namespace ckpt::replicate
