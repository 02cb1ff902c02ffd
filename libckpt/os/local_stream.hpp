// LocalStream: sends a LocalMessage through a stream socket, and refuses malformed ones.
//
//   header, 16 bytes, little-endian: magic u32 | version u16 | kind u16 | body bytes u32 | CRC-32
//   of the body u32; then the body. Descriptors travel with the first byte of the header.
//
// Internal to LocalConnection. Threads: the connection's executor.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "os/local_message.hpp"
#include "os/readiness.hpp"

namespace ckpt::os {

inline constexpr std::size_t local_header_bytes = 16;
inline constexpr std::uint32_t local_magic = 0x4c54504b;  // "KPTL".
inline constexpr std::uint16_t local_version = 1;

using LocalHeaderBytes = std::array<std::byte, local_header_bytes>;

struct LocalHeader {
  std::uint16_t kind = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t body_crc = 0;
};

LocalHeaderBytes encode_local_header(const LocalHeader& header);
// Errors: corruption (no header of ours), version_mismatch, exhausted (a body over the limit).
Result<LocalHeader> decode_local_header(const LocalHeaderBytes& bytes);

// `is_between_messages` says, when either ends, whether the stream stands at the start of a header.
Task<LocalMessage> read_local_message(std::shared_ptr<Readiness> socket, Time deadline,
                                      std::shared_ptr<bool> is_between_messages);
Task<void> write_local_message(std::shared_ptr<Readiness> socket, LocalMessage message,
                               Time deadline, std::shared_ptr<bool> is_between_messages);

}  // namespace ckpt::os
