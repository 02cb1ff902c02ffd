// Goal:   every CRC equals the one that zip defines, however the bytes are cut or aligned.
// Method: known vectors; a bitwise reference written from the definition; combination against the
//         direct sum around all block boundaries.
#include "base/checksum.hpp"

#include <catch2/catch.hpp>
#include <string_view>
#include <vector>

#include "base/units.hpp"
#include "support/assertion_trap.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Crc32 reference_crc32(std::span<const std::byte> bytes) {
  Crc32 crc = 0xffffffffu;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<Crc32>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0xedb88320u : crc >> 1;
  }
  return ~crc;
}

const std::vector<std::size_t> sizes = {0,
                                        1,
                                        2,
                                        7,
                                        8,
                                        15,
                                        16,
                                        17,
                                        63,
                                        64,
                                        255,
                                        256,
                                        257,
                                        1023,
                                        4095,
                                        4096,
                                        4097,
                                        16383,
                                        16384,
                                        16385,
                                        64 * KiB - 1,
                                        64 * KiB,
                                        64 * KiB + 1,
                                        256 * KiB - 1,
                                        256 * KiB,
                                        300'001};

TEST_CASE("checksum: CRC-32 gives the published values", "[unit][base]") {
  CHECK(crc32({}) == 0);
  CHECK(crc32(bytes_of("a")) == 0xe8b7be43u);
  CHECK(crc32(bytes_of("123456789")) == 0xcbf43926u);
  CHECK(crc32(bytes_of("The quick brown fox jumps over the lazy dog")) == 0x414fa339u);
  CHECK(crc32(std::vector<std::byte>(32)) == 0x190a55adu);
  CHECK(crc32(std::vector<std::byte>(32, std::byte{0xff})) == 0xff6cab0bu);
}

TEST_CASE("checksum: CRC-32 equals the bitwise definition at every size and alignment",
          "[unit][base]") {
  const auto bytes = random_bytes(300'001 + 64);
  for (const std::size_t size : sizes) {
    for (const std::size_t shift : {0u, 1u, 3u, 8u, 15u, 63u}) {
      const auto piece = std::span(bytes).subspan(shift, size);
      INFO("size " << size << " shift " << shift);
      CHECK(crc32(piece) == reference_crc32(piece));
    }
  }
}

TEST_CASE("checksum: a CRC goes on where the one before ended", "[unit][base]") {
  const auto bytes = random_bytes(10'000);
  const Crc32 whole = crc32(bytes);
  for (const std::size_t cut : {0u, 1u, 15u, 4096u, 9'999u, 10'000u}) {
    const Crc32 first = crc32(std::span(bytes).first(cut));
    CHECK(crc32(std::span(bytes).subspan(cut), first) == whole);
  }
}

TEST_CASE("checksum: combined CRCs equal the direct one", "[unit][base]") {
  const auto bytes = random_bytes(600'002, 2);
  for (const std::size_t first_bytes : sizes) {
    for (const std::size_t second_bytes : sizes) {
      const auto first = std::span(bytes).first(first_bytes);
      const auto second = std::span(bytes).subspan(first_bytes, second_bytes);
      INFO("sizes " << first_bytes << " and " << second_bytes);
      CHECK(crc32_combine(crc32(first), crc32(second), second_bytes) ==
            crc32(std::span(bytes).first(first_bytes + second_bytes)));
    }
  }
}

TEST_CASE("checksum: combining is associative, at lengths that no memory has", "[unit][base]") {
  const std::uint64_t b = (std::uint64_t{1} << 40) + 12345;
  const std::uint64_t c = (std::uint64_t{1} << 62) + 7;
  const Crc32 left = crc32_combine(crc32_combine(11, 22, b), 33, c);
  const Crc32 right = crc32_combine(11, crc32_combine(22, 33, c), b + c);
  CHECK(left == right);
}

TEST_CASE("checksum: copy and CRC in one pass give the bytes and their CRC", "[unit][base]") {
  const auto source = random_bytes(300'001 + 64, 3);
  for (const std::size_t size : sizes) {
    for (const std::size_t shift : {0u, 1u, 17u}) {
      std::vector<std::byte> target(size + 128, std::byte{0x5a});
      const auto piece = std::span(source).subspan(shift, size);
      const auto place = std::span(target).subspan(63 - shift, size);
      INFO("size " << size << " shift " << shift);
      CHECK(crc32_copy(place, piece) == crc32(piece));
      CHECK(std::equal(place.begin(), place.end(), piece.begin()));
      CHECK(target[62 - shift] == std::byte{0x5a});
      CHECK(target[63 - shift + size] == std::byte{0x5a});
    }
  }
  std::vector<std::byte> target(100);
  CHECK(crc32_copy(target, std::span(source).subspan(50, 100),
                   crc32(std::span(source).first(50))) == crc32(std::span(source).first(150)));
}

TEST_CASE("checksum: a copy into a range of another size breaks an invariant", "[unit][base]") {
  std::vector<std::byte> target(9);
  const std::vector<std::byte> source(10);
  REQUIRE_TRIPS(crc32_copy(target, source));
}

TEST_CASE("checksum: the digest is XXH3-128 as published, printed high half first",
          "[unit][base]") {
  CHECK(to_hex(digest_of({})) == "99aa06d3014798d86001c324468d497f");
  CHECK(to_hex(Digest{1, 0xabcdef}) == "00000000000000010000000000abcdef");
  CHECK(digest_of(bytes_of("a")) != digest_of(bytes_of("b")));
}

}  // namespace
}  // namespace ckpt::test
