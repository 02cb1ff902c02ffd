// Goal:   a decoder reads what was written, and nothing that was not.
// Method: round trips at the edges of each type; then lengths, booleans and ends that lie.
#include "format/codec.hpp"

#include <catch2/catch.hpp>

#include "sample.hpp"

namespace ckpt::format {

TEST_CASE("codec: every primitive comes back, little-endian", "[unit][format]") {
  Writer writer;
  writer.u8(0xff);
  writer.u16(0x0102);
  writer.u32(0x03040506);
  writer.u64(UINT64_MAX - 1);
  writer.boolean(true);
  writer.digest({7, 8});
  writer.string("h\xc3\xa9");
  writer.string("");
  const auto bytes = writer.take();
  CHECK(bytes[1] == std::byte{0x02});
  CHECK(bytes[2] == std::byte{0x01});
  Reader reader(bytes, "sample");
  CHECK(reader.u8() == 0xff);
  CHECK(reader.u16() == 0x0102);
  CHECK(reader.u32() == 0x03040506);
  CHECK(reader.u64() == UINT64_MAX - 1);
  CHECK(reader.boolean());
  CHECK(reader.digest() == Digest{7, 8});
  CHECK(reader.string(100) == "h\xc3\xa9");
  CHECK(reader.string(0).empty());
  CHECK(reader.finish());
}

TEST_CASE("codec: after the first failure everything reads as nothing", "[unit][format]") {
  const auto bytes = test::bytes_of("\x01\x02\x03");
  Reader reader(bytes, "sample");
  CHECK(reader.u64() == 0);
  CHECK(reader.u8() == 0);
  CHECK(reader.count(1) == 0);
  CHECK(reader.string(10).empty());
  const auto status = reader.finish();
  REQUIRE_FALSE(status);
  CHECK(status.error().code() == Errc::corruption);
  CHECK(status.error().text() == "sample: 8 bytes are wanted and 3 are left at byte 0");
}

TEST_CASE("codec: a length beyond the bytes allocates nothing", "[unit][format]") {
  Writer writer;
  writer.u32(UINT32_MAX);
  writer.u64(0);
  const auto bytes = writer.take();
  Reader list(bytes, "sample");
  CHECK(list.list<std::uint64_t>(8, [&] { return list.u64(); }).capacity() == 0);
  CHECK_FALSE(list.finish());
  Reader text(bytes, "sample");
  CHECK(text.string(SIZE_MAX).empty());
  CHECK_FALSE(text.finish());
}

TEST_CASE("codec: a list may use the bytes to the last one, and no more", "[unit][format]") {
  for (const std::uint32_t claimed : {0u, 1u, 2u, 3u}) {
    Writer writer;
    writer.u32(claimed);
    writer.u16(1);
    writer.u16(2);
    const auto bytes = writer.take();
    Reader reader(bytes, "sample");
    const auto values = reader.list<std::uint16_t>(2, [&] { return reader.u16(); });
    CAPTURE(claimed);
    CHECK(values.size() == (claimed <= 2 ? claimed : 0));
    CHECK(reader.finish().has_value() == (claimed == 2));
  }
}

TEST_CASE("codec: booleans and enumerations have no other values", "[unit][format]") {
  enum class Colour : std::uint8_t { red = 1, green = 2 };
  for (int value = 0; value < 256; ++value) {
    const std::vector<std::byte> bytes{static_cast<std::byte>(value)};
    Reader as_boolean(bytes, "sample");
    as_boolean.boolean();
    CHECK(as_boolean.finish().has_value() == (value <= 1));
    Reader as_colour(bytes, "sample");
    as_colour.enumerator(Colour::red, Colour::green);
    CHECK(as_colour.finish().has_value() == (value == 1 || value == 2));
  }
}

TEST_CASE("codec: a record is refused by checksum, then version, then kind", "[unit][format]") {
  Writer writer;
  writer.begin_record(RecordKind::decree);
  const auto record = writer.end_record();
  CHECK(Reader::open_record(record, RecordKind::decree, "sample"));
  CHECK(Reader::open_record(record, RecordKind::node_report, "sample").error().code() ==
        Errc::corruption);
  auto newer = record;
  newer[0] = std::byte{2};
  CHECK(Reader::open_record(newer, RecordKind::decree, "sample").error().code() ==
        Errc::corruption);
  test::repair_checksum(newer);
  CHECK(Reader::open_record(newer, RecordKind::decree, "sample").error().code() ==
        Errc::version_mismatch);
  CHECK_FALSE(Reader::open_record({}, RecordKind::decree, "sample"));
}

TEST_CASE("codec: hexadecimal digests have one spelling", "[unit][format]") {
  const Digest digest{0x0123456789abcdefu, 0xfedcba9876543210u};
  CHECK(digest_from_hex(to_hex(digest)) == digest);
  CHECK_FALSE(digest_from_hex("0123456789ABCDEFfedcba9876543210"));
  CHECK_FALSE(digest_from_hex("0123456789abcdeffedcba987654321"));
  CHECK_FALSE(digest_from_hex("0123456789abcdeffedcba98765432100"));
  CHECK_FALSE(digest_from_hex("0123456789abcdefgedcba9876543210"));
}

TEST_CASE("codec: a product that does not fit is nothing", "[unit][format]") {
  CHECK(checked_multiply(UINT64_MAX, 1) == UINT64_MAX);
  CHECK(checked_multiply(0, UINT64_MAX) == 0);
  CHECK_FALSE(checked_multiply(std::uint64_t{1} << 32, std::uint64_t{1} << 32));
}

TEST_CASE("dtype: every type has a name that leads back to it", "[unit][format]") {
  for (int value = 0; value <= static_cast<int>(DType::c64); ++value) {
    const auto type = static_cast<DType>(value);
    CHECK(dtype_from_safetensors(safetensors_name(type)) == type);
    CHECK(size_of(type) > 0);
  }
  CHECK(safetensors_name(DType::f8_e8m0) == "F8_E8M0");
  CHECK_FALSE(dtype_from_safetensors("F4"));
  CHECK_FALSE(dtype_from_safetensors("f32"));
}

}  // namespace ckpt::format
