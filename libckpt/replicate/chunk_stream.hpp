// ChunkStream: sends or receives the Chunks of one shard, for both directions of a transfer.
//
//   sender:   DATA or SAME...                  until all were sent, then waits for APPLIED
//   receiver: PROGRESS after each              the caller sends APPLIED
//
// The sender reads only when its window is full, so it never waits for a receiver that waits for
// it: few and small acknowledgements are outstanding.
#pragma once

#include <optional>
#include <vector>

#include "replicate/transfer.hpp"
#include "wire/message.hpp"

namespace ckpt::replicate {

// Acknowledgements that may be outstanding: 3 KiB of them.
inline constexpr std::size_t chunks_in_flight_max = 64;

struct ChunkStream {  // Both ends agreed on these values.
  wire::Connection& connection;
  Clock& clock;
  std::uint64_t ticket = 0;
  Digest digest;  // The digest of the shard's record.
  TransferOptions options;
  std::optional<SealedShard> base = std::nullopt;  // Held at both ends: see unchanged.hpp.
};

// The deadline of the next piece or frame.
Time step_deadline(const ChunkStream& stream);
// Sends a message about the shard. Errors: those of the connection.
Task<void> send_message(ChunkStream& stream, wire::FrameKind kind, std::vector<std::byte> body,
                        std::uint64_t offset = 0);
// Answers with REFUSE. Errors: those of the connection.
Task<void> refuse(ChunkStream& stream, Error why);
// The same in the middle of the stream. Reads everything that the sender sent before it saw the
// refusal: closing earlier would reset its connection. Always ends in an error, with the sender's
// close at the latest when its window is full.
Task<void> refuse_and_drain(ChunkStream& stream, Error why);
// Checks that `source` has as many bytes as the record says, before any of them is sent.
Status check_source(const SealedShard& source);

// Returns true if this Chunk matches its checksum. Errors: exhausted (no thread for it).
Task<bool> is_whole(Compute* compute, SealedShard source, std::size_t index);

struct Sent {
  std::optional<Error> refusal;  // From the peer, during the stream or instead of APPLIED.
  std::optional<Error> failure;  // That of the connection, or corruption.
  // With one of them: what the peer had not acknowledged, in the order of sending.
  std::vector<std::size_t> unacknowledged;
};
// Sends the Chunks that are not in `have`. With neither a refusal nor a failure, the peer has
// everything, verified. Errors: none.
Task<Sent> send_chunks(ChunkStream& stream, SealedShard source, ChunkSet have);

struct Received {
  ChunkSet have;
  std::optional<std::size_t> damaged_chunk;  // It failed its checksum; the stream stays usable.
  bool is_base_damaged = false;              // It was copied from the base.
};
// Fills the Chunks of `target` that are not in `have`. With `timeline`, frames of another one are
// errors. Errors: those of the connection, the peer's refusal, corruption (of the protocol).
Task<Received> receive_chunks(ChunkStream& stream,
                              std::shared_ptr<const format::ShardRecord> record, Destination target,
                              ChunkSet have, std::optional<std::uint64_t> timeline);

}  // namespace ckpt::replicate
