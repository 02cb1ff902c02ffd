// Frame: the 48 bytes before each message between daemons.
//
// Little-endian, without padding; libckpt/docs/protocol.md has the table. The header has a checksum
// of its own, so that a bit flip cannot pass for a length.
#pragma once

#include <array>
#include <ckpt/result.hpp>
#include <ckpt/version.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/checksum.hpp"
#include "base/units.hpp"

namespace ckpt::wire {

enum class FrameKind : std::uint16_t {
  // Before anything else, on every connection.
  hello = 1,
  challenge = 2,
  proof = 3,
  welcome = 4,
  refused = 5,
  // Control connections.
  report = 16,
  decree = 17,
  alive = 18,
  start = 19,
  ask_start = 20,
  // Data connections.
  offer = 32,
  grant = 33,
  data = 34,
  progress = 35,
  applied = 36,
  refuse = 37,
  fetch_record = 38,
  record = 39,
  fetch = 40,
  offer_changes = 41,
  same = 42,
  // Either.
  goodbye = 48,
};

struct FrameHeader {
  std::uint16_t version = peer_protocol_version;
  FrameKind kind = FrameKind::goodbye;
  std::uint32_t body_bytes = 0;
  Crc32 body_crc = 0;
  std::uint64_t ticket = 0;  // Names a transfer at its receiver; in `alive`, our newest state.
  std::uint64_t offset = 0;  // In the shard's bytes; in `alive`, the receiver's state that we have.
  std::uint64_t timeline = 0;  // The sender's; an older one means that it is fenced.
  bool operator==(const FrameHeader&) const = default;
};

inline constexpr std::uint32_t frame_magic = 0x57504b43;  // "CKPW".
inline constexpr std::size_t frame_header_bytes = 48;
using FrameHeaderBytes = std::array<std::byte, frame_header_bytes>;

// Nothing is proven yet: a listener reads only two small messages of the dialer.
inline constexpr std::uint32_t handshake_body_bytes_max = 16 * KiB;
// Reports and records of authenticated peers: 64 MiB hold the record of some 600 000 tensors.
inline constexpr std::uint32_t control_body_bytes_max = 64 * MiB;
// A Chunk is 4 MiB; a record may have larger ones, up to this.
inline constexpr std::uint32_t data_body_bytes_max = 64 * MiB;

std::string_view to_string(FrameKind kind);
// The limit of `body_bytes`; decode_header checks it.
std::uint32_t body_bytes_max(FrameKind kind);

FrameHeaderBytes encode_header(const FrameHeader& header);
// Errors: corruption (magic, checksum, unknown kind, a body above its limit),
//         version_mismatch (the header is sound, and of another version).
Result<FrameHeader> decode_header(std::span<const std::byte, frame_header_bytes> bytes);

}  // namespace ckpt::wire
