#include "wire/frame.hpp"

#include <fmt/format.h>

namespace ckpt::wire {

namespace {

// The table of libckpt/docs/protocol.md. The first four and the last stay where they are in every
// version, so that two versions can recognise each other.
constexpr std::size_t magic_at = 0;
constexpr std::size_t version_at = 4;
constexpr std::size_t kind_at = 6;
constexpr std::size_t body_bytes_at = 8;
constexpr std::size_t body_crc_at = 12;
constexpr std::size_t ticket_at = 16;
constexpr std::size_t offset_at = 24;
constexpr std::size_t timeline_at = 32;
constexpr std::size_t reserved_at = 40;  // Zero.
constexpr std::size_t header_crc_at = 44;
static_assert(header_crc_at + sizeof(Crc32) == frame_header_bytes);
static_assert(sizeof(FrameHeaderBytes) == frame_header_bytes);
static_assert(ticket_at % 8 == 0 && offset_at % 8 == 0 && timeline_at % 8 == 0);

template <std::unsigned_integral T>
void put(FrameHeaderBytes& bytes, std::size_t at, T value) {
  for (std::size_t index = 0; index < sizeof(T); ++index)
    bytes[at + index] = static_cast<std::byte>((value >> (8 * index)) & 0xff);
}
template <std::unsigned_integral T>
T take(std::span<const std::byte, frame_header_bytes> bytes, std::size_t at) {
  T value = 0;
  for (std::size_t index = 0; index < sizeof(T); ++index)
    value = static_cast<T>(value | (static_cast<T>(bytes[at + index]) << (8 * index)));
  return value;
}

}  // namespace

std::string_view to_string(FrameKind kind) {
  switch (kind) {
    case FrameKind::hello:
      return "hello";
    case FrameKind::challenge:
      return "challenge";
    case FrameKind::proof:
      return "proof";
    case FrameKind::welcome:
      return "welcome";
    case FrameKind::refused:
      return "refused";
    case FrameKind::report:
      return "report";
    case FrameKind::decree:
      return "decree";
    case FrameKind::alive:
      return "alive";
    case FrameKind::start:
      return "start";
    case FrameKind::ask_start:
      return "ask_start";
    case FrameKind::offer:
      return "offer";
    case FrameKind::grant:
      return "grant";
    case FrameKind::data:
      return "data";
    case FrameKind::progress:
      return "progress";
    case FrameKind::applied:
      return "applied";
    case FrameKind::refuse:
      return "refuse";
    case FrameKind::fetch_record:
      return "fetch_record";
    case FrameKind::record:
      return "record";
    case FrameKind::fetch:
      return "fetch";
    case FrameKind::offer_changes:
      return "offer_changes";
    case FrameKind::same:
      return "same";
    case FrameKind::goodbye:
      return "goodbye";
  }
  return "unknown";
}

std::uint32_t body_bytes_max(FrameKind kind) {
  switch (kind) {
    case FrameKind::hello:
    case FrameKind::challenge:
    case FrameKind::proof:
    case FrameKind::welcome:
    case FrameKind::refused:
    case FrameKind::refuse:
    case FrameKind::goodbye:
      return handshake_body_bytes_max;
    case FrameKind::report:
    case FrameKind::decree:
    case FrameKind::start:
    case FrameKind::offer:
    case FrameKind::offer_changes:
    case FrameKind::record:
      return control_body_bytes_max;
    case FrameKind::data:
      return data_body_bytes_max;
    case FrameKind::grant:
    case FrameKind::fetch:
      return MiB;  // A bitmap: eight million Chunks.
    case FrameKind::alive:
    case FrameKind::progress:
    case FrameKind::same:
      return 0;
    case FrameKind::ask_start:
    case FrameKind::applied:
    case FrameKind::fetch_record:
      return KiB;
  }
  return 0;
}

FrameHeaderBytes encode_header(const FrameHeader& header) {
  FrameHeaderBytes bytes{};
  put<std::uint32_t>(bytes, magic_at, frame_magic);
  put<std::uint16_t>(bytes, version_at, header.version);
  put<std::uint16_t>(bytes, kind_at, static_cast<std::uint16_t>(header.kind));
  put<std::uint32_t>(bytes, body_bytes_at, header.body_bytes);
  put<std::uint32_t>(bytes, body_crc_at, header.body_crc);
  put<std::uint64_t>(bytes, ticket_at, header.ticket);
  put<std::uint64_t>(bytes, offset_at, header.offset);
  put<std::uint64_t>(bytes, timeline_at, header.timeline);
  put<std::uint32_t>(bytes, reserved_at, 0);
  put<std::uint32_t>(bytes, header_crc_at, crc32(std::span(bytes).first(header_crc_at)));
  return bytes;
}

Result<FrameHeader> decode_header(std::span<const std::byte, frame_header_bytes> bytes) {
  if (take<std::uint32_t>(bytes, magic_at) != frame_magic)
    return fail(Errc::corruption, "read frame: it does not begin like a frame of libckpt");
  if (take<std::uint32_t>(bytes, header_crc_at) != crc32(bytes.first(header_crc_at)))
    return fail(Errc::corruption, "read frame: the header does not match its checksum");
  FrameHeader header;
  header.version = take<std::uint16_t>(bytes, version_at);
  if (header.version != peer_protocol_version)
    return fail(Errc::version_mismatch,
                fmt::format("read frame: the peer speaks protocol version {}, this daemon {}",
                            header.version, peer_protocol_version));
  header.kind = static_cast<FrameKind>(take<std::uint16_t>(bytes, kind_at));
  header.body_bytes = take<std::uint32_t>(bytes, body_bytes_at);
  header.body_crc = take<std::uint32_t>(bytes, body_crc_at);
  header.ticket = take<std::uint64_t>(bytes, ticket_at);
  header.offset = take<std::uint64_t>(bytes, offset_at);
  header.timeline = take<std::uint64_t>(bytes, timeline_at);
  if (to_string(header.kind) == "unknown")
    return fail(Errc::corruption, fmt::format("read frame: there is no kind {}",
                                              static_cast<std::uint16_t>(header.kind)));
  if (header.body_bytes > body_bytes_max(header.kind))
    return fail(
        Errc::corruption,
        fmt::format("read frame: a body of {} bytes, where {} may have {}", header.body_bytes,
                    to_string(header.kind), body_bytes_max(header.kind)));
  return header;
}

}  // namespace ckpt::wire
