#include "wire/message.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "format/codec.hpp"

namespace ckpt::wire {

namespace {

FrameHeader header_of(const Message& message) {
  FrameHeader header;
  header.kind = message.kind;
  header.body_bytes = static_cast<std::uint32_t>(message.body.size());
  header.body_crc = crc32(message.body);
  header.ticket = message.ticket;
  header.offset = message.offset;
  header.timeline = message.timeline;
  return header;
}

}  // namespace

Result<std::vector<std::byte>> encode(const Message& message) {
  if (message.body.size() > body_bytes_max(message.kind))
    return fail(
        Errc::exhausted,
        fmt::format("send {}: {} bytes, more than the {} that a frame may hold",
                    to_string(message.kind), message.body.size(), body_bytes_max(message.kind)));
  const FrameHeaderBytes header = encode_header(header_of(message));
  std::vector<std::byte> bytes;
  bytes.reserve(header.size() + message.body.size());
  bytes.insert(bytes.end(), header.begin(), header.end());
  bytes.insert(bytes.end(), message.body.begin(), message.body.end());
  return bytes;
}

Task<FrameHeader> read_header(Connection& connection, Time deadline) {
  FrameHeaderBytes bytes{};
  const std::span<std::byte> target(bytes);
  CKPT_CO_CHECK(co_await connection.read(target, deadline));
  co_return decode_header(bytes);
}

Task<std::vector<std::byte>> read_body(Connection& connection, FrameHeader header, Time deadline) {
  std::vector<std::byte> body(header.body_bytes);
  const std::span<std::byte> target(body);
  if (!body.empty()) {
    CKPT_CO_CHECK(co_await connection.read(target, deadline));
  }
  if (crc32(body) != header.body_crc)
    co_return fail(Errc::corruption,
                   fmt::format("read {} from {}: the body does not match its checksum",
                               to_string(header.kind), connection.remote()));
  co_return body;
}

Task<Message> read_message(Connection& connection, Time deadline, std::uint32_t bytes_max) {
  CKPT_CO_TRY(const FrameHeader header, co_await read_header(connection, deadline));
  if (header.body_bytes > bytes_max)
    co_return fail(Errc::exhausted, fmt::format("read {} from {}: {} bytes, {} are allowed here",
                                                to_string(header.kind), connection.remote(),
                                                header.body_bytes, bytes_max));
  CKPT_CO_TRY(auto body, co_await read_body(connection, header, deadline));
  Message message;
  message.kind = header.kind;
  message.ticket = header.ticket;
  message.offset = header.offset;
  message.timeline = header.timeline;
  message.body = std::move(body);
  co_return message;
}

Task<void> write_message(Connection& connection, Message message, Time deadline) {
  // Small messages, nearly all, go out in one buffer and so in one packet.
  constexpr std::size_t joined_bytes_max = 64 * KiB;
  if (message.body.size() <= joined_bytes_max) {
    CKPT_CO_TRY(const auto bytes, encode(message));
    const std::span<const std::byte> joined(bytes);
    CKPT_CO_CHECK(co_await connection.write(joined, deadline));
    co_return Status();
  }
  if (message.body.size() > body_bytes_max(message.kind))
    co_return fail(
        Errc::exhausted,
        fmt::format("send {}: {} bytes, more than the {} that a frame may hold",
                    to_string(message.kind), message.body.size(), body_bytes_max(message.kind)));
  const FrameHeaderBytes header = encode_header(header_of(message));
  const std::span<const std::byte> first(header);
  CKPT_CO_CHECK(co_await connection.write(first, deadline));
  const std::span<const std::byte> rest(message.body);
  CKPT_CO_CHECK(co_await connection.write(rest, deadline));
  co_return Status();
}

std::vector<std::byte> encode(const Refusal& refusal) {
  format::Writer writer;
  writer.u16(static_cast<std::uint16_t>(refusal.code));
  writer.string(std::string_view(refusal.reason).substr(0, reason_bytes_max));
  return writer.take();
}

Error decode_refusal(std::span<const std::byte> body, const std::string& remote) {
  format::Reader reader(body, "refusal");
  const std::uint16_t code = reader.u16();
  std::string reason = reader.string(reason_bytes_max);
  const bool is_known = code >= static_cast<std::uint16_t>(Errc::invalid_argument) &&
                        code <= static_cast<std::uint16_t>(Errc::version_mismatch);
  if (!reader.finish() || !is_known)
    return Error(Errc::unavailable, fmt::format("{} refused and gave no readable reason", remote));
  // The text of a peer goes to logs and terminals: only printable characters are kept.
  std::replace_if(
      reason.begin(), reason.end(),
      [](unsigned char letter) { return letter < 0x20 || letter == 0x7f; }, '?');
  return Error(static_cast<Errc>(code), fmt::format("{} refused: {}", remote, reason));
}

}  // namespace ckpt::wire
