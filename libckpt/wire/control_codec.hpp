// ControlCodec: control messages as bytes: an 8-byte header, then a body of that kind.
//
// The socket is the kernel's own memory, so there is no checksum; but nothing that comes out of it
// is believed before it was checked.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "wire/control_messages.hpp"

namespace ckpt::wire::control {

// u32 bytes of the body, u16 kind, u16 descriptors that come with the frame.
struct Header {
  std::uint32_t body_bytes = 0;
  std::uint16_t kind = 0;
  std::uint16_t descriptors = 0;
};
inline constexpr std::size_t header_bytes = 8;

// The most descriptors that Linux takes with one message (SCM_MAX_FD).
inline constexpr std::size_t descriptors_max = 253;

// The layout of two million tensors with long names; other kinds have far lower limits.
inline constexpr std::uint32_t layout_body_bytes_max = 1u << 30;
inline constexpr std::uint32_t answer_body_bytes_max = 64u << 20;
inline constexpr std::uint32_t other_body_bytes_max = 1u << 20;

// Header and body. Errors: exhausted (the body is above its kind's limit).
Result<std::vector<std::byte>> encode(const Message& message);

// Errors: corruption (an unknown kind, a body or a number of descriptors that it cannot have).
Result<Header> decode_header(std::span<const std::byte> bytes);
Result<Message> decode(const Header& header, std::span<const std::byte> body);

Hello our_hello();
// Errors: version_mismatch, which names both versions and what to do. `other` is the other side's
// program: "the daemon", "the trainer".
Status check_hello(const Hello& hello, std::string_view other);

}  // namespace ckpt::wire::control
