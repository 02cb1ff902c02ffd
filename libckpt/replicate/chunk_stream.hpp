// ChunkStream: the Chunks of one shard on their way, in either direction of a transfer.
//
//   sender:   DATA...                          until all were sent, then waits for APPLIED
//   receiver: PROGRESS after each DATA         the caller says APPLIED
//
// The sender reads only when its window is full, so it never waits for a receiver that waits for
// it: the acknowledgements outstanding are few and small.
#pragma once

#include <optional>

#include "replicate/transfer.hpp"
#include "wire/message.hpp"

namespace ckpt::replicate {

// Each has the whole stall deadline to get on.
inline constexpr std::size_t piece_bytes = 256 * KiB;
// Acknowledgements that may be on their way: 3 KiB of them.
inline constexpr std::size_t chunks_in_flight_max = 64;

struct Stream {  // Both ends agreed on these.
  wire::Connection& connection;
  Clock& clock;
  std::uint64_t ticket = 0;
  Digest digest;  // Of the shard's record.
  TransferOptions options;
};

// By when the next piece or frame must be through.
Time step_deadline(const Stream& stream);
// Answers with REFUSE. Errors: those of the connection.
Task<void> refuse(Stream& stream, Error why);
// Checks that the bytes of `source` are those that the record says, before anything is sent of
// them.
Status check_source(const ShardSource& source);

// Whether the bytes of this Chunk match its checksum. Errors: exhausted (no thread for it).
Task<bool> is_whole(Compute* compute, ShardSource source, std::size_t index);

struct Sent {
  bool is_applied = false;                   // The peer has all, verified.
  std::optional<Error> refusal;              // The peer's, in mid-stream or instead of APPLIED.
  std::optional<std::size_t> damaged_chunk;  // Ours: nothing of it, and nothing after it, was sent.
};
// Sends what is not in `have`. With `verify`, each Chunk is checked before it leaves; a damaged one
// ends the stream in good order, without APPLIED.
// Errors: those of the connection, corruption.
Task<Sent> send_chunks(Stream& stream, ShardSource source, ChunkSet have, bool verify);

struct Arrived {
  ChunkSet have;
  std::optional<std::size_t> damaged_chunk;  // Did not match its checksum; the stream is in order.
};
// Fills the Chunks of `target` that are not in `have`. With `timeline`, frames of another are
// wrong. Errors: those of the connection, what the peer refused with, corruption (of the protocol).
Task<Arrived> receive_chunks(Stream& stream, std::shared_ptr<const format::ShardRecord> record,
                             std::span<std::byte> target, ChunkSet have,
                             std::optional<std::uint64_t> timeline);

}  // namespace ckpt::replicate
