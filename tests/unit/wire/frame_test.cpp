// Goal:   no damaged or oversized frame is ever taken for a good one, and the bytes never change
//         unnoticed within a protocol version.
// Method: one frame's bytes written out by hand, every bit of frames flipped, limits probed at
//         their edges, and messages read over the simulated network.
#include "wire/frame.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "support/sim_pair.hpp"
#include "wire/message.hpp"

namespace ckpt::wire {

namespace {

using test::SimPair;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

FrameHeader sample_header() {
  FrameHeader header;
  header.kind = FrameKind::data;
  header.body_bytes = 0x00400000;
  header.body_crc = 0x11223344;
  header.ticket = 0x0102030405060708;
  header.offset = 0x0000000300400000;
  header.timeline = 9;
  return header;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

Message sample_message() {
  Message message;
  message.kind = FrameKind::report;
  message.ticket = 7;
  message.timeline = 3;
  message.body = bytes_of("what a node reports");
  return message;
}

}  // namespace

TEST_CASE("frame: the header's bytes are those of the protocol document", "[unit][wire]") {
  const FrameHeaderBytes bytes = encode_header(sample_header());
  const std::string before_crc =
      "434b5057"          // Magic: "CKPW".
      "0900"              // Version.
      "2200"              // Kind: data.
      "00004000"          // Body bytes.
      "44332211"          // Body CRC.
      "0807060504030201"  // Ticket.
      "0000400003000000"  // Offset.
      "0900000000000000"  // Timeline.
      "00000000";         // Reserved.
  REQUIRE(hex(std::span(bytes).first(44)) == before_crc);
  REQUIRE(hex(std::span(bytes).last(4)) == "348f03c1");
  const auto decoded = decode_header(bytes);
  REQUIRE(decoded);
  REQUIRE(*decoded == sample_header());
}

TEST_CASE("frame: a flip of any bit of a header is corruption", "[unit][wire]") {
  const FrameHeaderBytes good = encode_header(sample_header());
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    FrameHeaderBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const auto decoded = decode_header(bad);
    REQUIRE_FALSE(decoded);
    REQUIRE(decoded.error().code() == Errc::corruption);
  }
}

TEST_CASE("frame: a body above its kind's limit is refused before it is read", "[unit][wire]") {
  for (const FrameKind kind :
       {FrameKind::hello, FrameKind::report, FrameKind::offer, FrameKind::data, FrameKind::progress,
        FrameKind::applied, FrameKind::offer_changes, FrameKind::same}) {
    FrameHeader header;
    header.kind = kind;
    header.body_bytes = body_bytes_max(kind);
    REQUIRE(decode_header(encode_header(header)));
    header.body_bytes = body_bytes_max(kind) + 1;
    REQUIRE_FALSE(decode_header(encode_header(header)));
    header.body_bytes = UINT32_MAX;
    REQUIRE_FALSE(decode_header(encode_header(header)));
  }
}

TEST_CASE("frame: a kind that does not exist is refused", "[unit][wire]") {
  for (const unsigned kind : {0u, 6u, 15u, 43u, 49u, 65535u}) {
    FrameHeader header;
    header.kind = static_cast<FrameKind>(kind);
    const auto decoded = decode_header(encode_header(header));
    REQUIRE_FALSE(decoded);
    REQUIRE(decoded.error().code() == Errc::corruption);
  }
}

TEST_CASE("frame: another protocol version is named with ours", "[unit][wire]") {
  FrameHeader header;
  header.version = 77;
  const auto decoded = decode_header(encode_header(header));
  REQUIRE_FALSE(decoded);
  REQUIRE(decoded.error().code() == Errc::version_mismatch);
  REQUIRE(decoded.error().text().find("77") != std::string::npos);
  REQUIRE(decoded.error().text().find(std::to_string(peer_protocol_version)) != std::string::npos);
}

TEST_CASE("message: one of any size reads back as it was written", "[unit][wire]") {
  SimPair pair;
  const auto joined = pair.join();
  for (const std::size_t size : {0u, 1u, 65535u, 65536u, 65537u, 1u << 20}) {
    Message message = sample_message();
    message.body.assign(size, std::byte(0x5a));
    auto writing = test::start(
        pair.context,
        write_message(*joined.at_a, message, pair.clock.after(std::chrono::minutes(5))));
    const auto got =
        pair.run(read_message(*joined.at_b, pair.clock.after(std::chrono::minutes(5))));
    REQUIRE(got);
    REQUIRE(*got == message);
    REQUIRE(test::finish(pair.clock, std::move(writing)));
  }
}

TEST_CASE("message: a flip of any byte on the wire is detected", "[unit][wire]") {
  const std::size_t size = encode(sample_message()).value().size();
  for (std::size_t offset = 0; offset < size; ++offset) {
    SimPair pair(offset);
    const auto joined = pair.join();
    test::StreamFault fault;
    fault.from = "A";
    fault.to = "B";
    fault.offset = offset;
    fault.bit = static_cast<std::uint8_t>(offset % 8);
    pair.network.inject(fault);
    REQUIRE(pair.run(
        write_message(*joined.at_a, sample_message(), pair.clock.after(std::chrono::seconds(5)))));
    const auto got =
        pair.run(read_message(*joined.at_b, pair.clock.after(std::chrono::seconds(5))));
    REQUIRE_FALSE(got);
    REQUIRE(got.error().code() == Errc::corruption);
  }
}

TEST_CASE("message: a stream that is cut at any byte is an error, never a short message",
          "[unit][wire]") {
  const std::size_t size = encode(sample_message()).value().size();
  for (std::size_t offset = 0; offset < size; ++offset) {
    SimPair pair(offset);
    const auto joined = pair.join();
    test::StreamFault fault;
    fault.from = "A";
    fault.to = "B";
    fault.offset = offset;
    fault.kind = test::StreamFault::Kind::reset;
    pair.network.inject(fault);
    auto writing = test::start(
        pair.context,
        write_message(*joined.at_a, sample_message(), pair.clock.after(std::chrono::seconds(5))));
    const auto got =
        pair.run(read_message(*joined.at_b, pair.clock.after(std::chrono::seconds(5))));
    REQUIRE_FALSE(got);
    REQUIRE(got.error().code() == Errc::unavailable);
    REQUIRE(writing.is_done());
  }
}

TEST_CASE("message: a limit of the reader's own is kept before anything is allocated",
          "[unit][wire]") {
  SimPair pair;
  const auto joined = pair.join();
  Message message = sample_message();
  message.body.resize(1001);
  const Time deadline = pair.clock.after(std::chrono::seconds(5));
  REQUIRE(pair.run(write_message(*joined.at_a, message, deadline)));
  const auto got = pair.run(read_message(*joined.at_b, deadline, 1000));
  REQUIRE_FALSE(got);
  REQUIRE(got.error().code() == Errc::exhausted);
}

TEST_CASE("message: one that no frame can hold is not sent", "[unit][wire]") {
  SimPair pair;
  const auto joined = pair.join();
  Message message = sample_message();
  message.body.resize(control_body_bytes_max + 1);
  const Time deadline = pair.clock.after(std::chrono::seconds(5));
  const Status sent = pair.run(write_message(*joined.at_a, message, deadline));
  REQUIRE_FALSE(sent);
  REQUIRE(sent.error().code() == Errc::exhausted);
  REQUIRE(pair.network.bytes_delivered("A", "B") == 0);
}

TEST_CASE("refusal: its reaction and its reason arrive, whatever the peer wrote", "[unit][wire]") {
  Refusal refusal;
  refusal.code = Errc::exhausted;
  refusal.reason = "no room for 3 GiB";
  const Error error = decode_refusal(encode(refusal), "B:1");
  REQUIRE(error.code() == Errc::exhausted);
  REQUIRE(error.text() == "B:1 refused: no room for 3 GiB");

  refusal.reason = "\x1b[31mred\n";
  REQUIRE(decode_refusal(encode(refusal), "B").text() == "B refused: ?[31mred?");
  refusal.reason = std::string(10 * reason_bytes_max, 'x');
  REQUIRE(encode(refusal).size() <= handshake_body_bytes_max);
  REQUIRE(decode_refusal(encode(refusal), "B").code() == Errc::exhausted);
  REQUIRE(decode_refusal(bytes_of("?"), "B").code() == Errc::unavailable);
  refusal.code = static_cast<Errc>(4711);
  REQUIRE(decode_refusal(encode(refusal), "B").code() == Errc::unavailable);
}

}  // namespace ckpt::wire
