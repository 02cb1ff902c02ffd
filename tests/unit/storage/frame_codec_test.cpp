// Goal:   a frame gives back exactly the bytes of its Chunk, or an error: it never gives more.
// Method: byte planes of all widths and odd sizes; frames of numbers and of noise; frames whose
//         content is larger, smaller, cut, doubled or turned.
#include "storage/frame_codec.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "base/random.hpp"
#include "base/units.hpp"
#include "storage/byte_planes.hpp"

namespace ckpt::storage {

namespace {

using Bytes = std::vector<std::byte>;

Bytes noise(std::size_t size) {
  Random random(size + 1);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

// Numbers whose high byte hardly changes.
Bytes numbers(std::size_t size) {
  Bytes bytes = noise(size);
  for (std::size_t index = 1; index < size; index += 2) bytes[index] = std::byte{0x3c};
  return bytes;
}

Bytes pack(const Bytes& bytes, std::uint8_t width, int level = 0) {
  Bytes target(bytes.size());
  const std::span<const std::byte> half = std::span(bytes).first(bytes.size() / 2);
  const std::span<const std::byte> rest = std::span(bytes).subspan(bytes.size() / 2);
  const std::vector<std::span<const std::byte>> pieces{half, rest};
  const auto packed = pack_frame(pieces, width, Compression{level}, target);
  REQUIRE((packed ? "" : packed.error().message()) == "");
  target.resize(*packed);
  return target;
}

bool is_refused(std::span<const std::byte> frame, std::size_t content) {
  Bytes target(content);
  const Status opened = unpack_frame(frame, 2, target);
  return !opened && opened.error().code() == Errc::corruption;
}

}  // namespace

TEST_CASE("byte planes: they are split by the place in the number, and joined again",
          "[unit][storage]") {
  const Bytes bytes{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}};
  Bytes planes(bytes.size());
  split_planes(bytes, 2, planes);
  CHECK(planes == Bytes{std::byte{1}, std::byte{3}, std::byte{2}, std::byte{4}, std::byte{5}});
  for (const std::size_t size : {0, 1, 7, 8, 9, 4095, 4096, 4099}) {
    for (const std::uint8_t width : {1, 2, 4, 8}) {
      const Bytes source = noise(size);
      Bytes split(size), joined(size);
      split_planes(source, width, split);
      join_planes(split, width, joined);
      CHECK(joined == source);
    }
  }
}

TEST_CASE("frame: it gives back what was packed, in fewer bytes", "[unit][storage]") {
  for (const std::size_t size : {3 * page_bytes, 64 * KiB, 64 * KiB + 1, MiB + 77}) {
    const Bytes bytes = numbers(size);
    for (const std::uint8_t width : {1, 2, 4, 8}) {
      for (const int level : {0, 1, 3, 19}) {
        if (level == 19 && size > 64 * KiB) continue;
        CAPTURE(size, int{width}, level);
        const Bytes frame = pack(bytes, width, level);
        REQUIRE_FALSE(frame.empty());
        CHECK(frame.size() <= align_up(size, page_bytes) - page_bytes);
        Bytes target(size);
        REQUIRE(unpack_frame(frame, width, target));
        CHECK(target == bytes);
      }
    }
  }
}

TEST_CASE("frame: planes of numbers shrink to their entropy", "[unit][storage]") {
  const Bytes bytes = numbers(MiB);
  CHECK(pack(bytes, 2).size() < MiB / 2 + MiB / 50);
}

TEST_CASE("frame: noise, and what has only a page, is not packed", "[unit][storage]") {
  CHECK(pack(noise(MiB), 2).empty());
  CHECK(pack(noise(MiB), 1, 3).empty());
  CHECK(pack(Bytes(page_bytes), 2).empty());
  CHECK(pack(Bytes(1), 2).empty());
  CHECK_FALSE(pack(Bytes(page_bytes + 1), 2).empty());
}

TEST_CASE("frame: content of another size is refused before it is opened", "[unit][storage]") {
  const Bytes bomb = pack(Bytes(16 * MiB), 2);
  REQUIRE(bomb.size() < 16 * KiB);
  CHECK(is_refused(bomb, 16 * MiB - 1));
  CHECK(is_refused(bomb, 16 * MiB + 1));
  CHECK(is_refused(bomb, page_bytes));
  CHECK_FALSE(is_refused(bomb, 16 * MiB));
  Bytes target(page_bytes, std::byte{0xee});
  const Status opened = unpack_frame(bomb, 1, target);
  REQUIRE_FALSE(opened);
  CHECK_THAT(opened.error().message(), Catch::Contains("its content has 16777216 bytes"));
  CHECK(target == Bytes(page_bytes, std::byte{0xee}));
}

TEST_CASE("frame: anything but exactly one whole frame is refused", "[unit][storage]") {
  const Bytes bytes = numbers(3 * page_bytes);
  const Bytes frame = pack(bytes, 2);
  REQUIRE_FALSE(is_refused(frame, bytes.size()));
  CHECK(is_refused({}, bytes.size()));
  Bytes doubled = frame;
  doubled.insert(doubled.end(), frame.begin(), frame.end());
  CHECK(is_refused(doubled, bytes.size()));
  Bytes longer = frame;
  longer.push_back(std::byte{0});
  CHECK(is_refused(longer, bytes.size()));
  // A frame that zstd passes over: its magic number, and a size of zero.
  Bytes followed = frame;
  for (const int byte : {0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0})
    followed.push_back(static_cast<std::byte>(byte));
  CHECK(is_refused(followed, bytes.size()));
  for (std::size_t size = 0; size < frame.size(); size += 1 + size / 8)
    CHECK(is_refused(std::span(frame).first(size), bytes.size()));
  // A frame that skips itself has no content.
  Bytes skipped = frame;
  const std::uint32_t magic = 0x184D2A50;
  std::memcpy(skipped.data(), &magic, sizeof magic);
  CHECK(is_refused(skipped, bytes.size()));
}

TEST_CASE("frame: any turned bit ends in an error or in as many bytes", "[unit][storage]") {
  const Bytes bytes = numbers(3 * page_bytes);
  const Bytes frame = pack(bytes, 2);
  for (std::size_t bit = 0; bit < frame.size() * 8; bit += 1 + bit / 64) {
    Bytes bad = frame;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    Bytes target(bytes.size() + 1, std::byte{0xee});
    const Status opened = unpack_frame(bad, 2, std::span(target).first(bytes.size()));
    CHECK((opened || opened.error().code() == Errc::corruption));
    CHECK(target.back() == std::byte{0xee});
  }
}

TEST_CASE("compression: its name, a level, or nothing", "[unit][storage]") {
  CHECK_FALSE(parse_compression("")->has_value());
  CHECK_FALSE(parse_compression("none")->has_value());
  CHECK(parse_compression("zstd").value() == Compression{0});
  CHECK(parse_compression("zstd:1").value() == Compression{1});
  CHECK(parse_compression("zstd:19").value() == Compression{19});
  for (const char* bad : {"zstd:", "zstd:0", "zstd:20", "zstd:-1", "zstd:3x", "zstd3", "gzip", "3",
                          "ZSTD", "zstd:99999999999"}) {
    CAPTURE(bad);
    const auto parsed = parse_compression(bad);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().code() == Errc::invalid_argument);
  }
  CHECK(check_available(Compression{}));
}

}  // namespace ckpt::storage
