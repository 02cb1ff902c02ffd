// Message: a frame with a body that is small enough to be held, read and written as a whole.
//
// All kinds except `data`, whose bodies go straight from Slot to Slot. A message that was read is
// intact: header and body match their checksums.
//
// Threads: as the Connection: one read_message and one write_message at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/connection.hpp"
#include "wire/frame.hpp"

namespace ckpt::wire {

struct Message {
  FrameKind kind = FrameKind::goodbye;
  std::uint64_t ticket = 0;
  std::uint64_t offset = 0;
  std::uint64_t timeline = 0;
  std::vector<std::byte> body;
  bool operator==(const Message&) const = default;
};

// The bytes as they go over the wire. Errors: exhausted (the body is above its kind's limit).
Result<std::vector<std::byte>> encode(const Message& message);

// Errors: those of the connection, corruption, version_mismatch, exhausted (`body_bytes_max`).
// After an error the connection is unusable.
Task<Message> read_message(Connection& connection, Time deadline,
                           std::uint32_t body_bytes_max = control_body_bytes_max);
Task<void> write_message(Connection& connection, Message message, Time deadline);

// The two halves, for callers that read the body elsewhere.
Task<FrameHeader> read_header(Connection& connection, Time deadline);
Task<std::vector<std::byte>> read_body(Connection& connection, FrameHeader header, Time deadline);

// Refusal: the body of `refused` and `refuse`: the requested reaction, and the reason.
struct Refusal {
  Errc code = Errc::unavailable;
  std::string reason;
};
inline constexpr std::size_t reason_bytes_max = 4096;  // Longer ones are cut.
std::vector<std::byte> encode(const Refusal& refusal);
// Returns the peer's refusal as an error of ours. A body that cannot be read is a refusal, too.
Error decode_refusal(std::span<const std::byte> body, const std::string& remote);

}  // namespace ckpt::wire
