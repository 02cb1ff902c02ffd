// Goal:   the fingerprint of a Chunk is the one that is written down, on every machine; no small
//         change keeps it; and it does not matter in which parts or order it is computed.
// Method: golden values, which docs/fingerprint.md repeats; the definition once more, word by word;
//         every bit of a small Chunk flipped; words that change places; parts in any order.
#include "base/fingerprint.hpp"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "base/random.hpp"
#include "base/units.hpp"

namespace ckpt {

namespace {

std::vector<std::byte> counting(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

// Read from docs/fingerprint.md, and as slow as it is simple.
Digest by_the_document(std::span<const std::byte> chunk) {
  constexpr std::uint64_t p = 0x9e3779b97f4a7c15, a = 0xbf58476d1ce4e5b9, b = 0x94d049bb133111eb,
                          c = 0xff51afd7ed558ccd, l = 0xc4ceb9fe1a85ec53;
  const auto mix = [](std::uint64_t v) {
    v = (v ^ (v >> 30)) * a;
    v = (v ^ (v >> 27)) * b;
    return v ^ (v >> 31);
  };
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  for (std::uint64_t i = 0; i < div_ceil(chunk.size(), 8); ++i) {
    std::uint64_t word = 0;
    for (std::uint64_t k = 0; k < 8 && 8 * i + k < chunk.size(); ++k)
      word |= std::to_integer<std::uint64_t>(chunk[8 * i + k]) << (8 * k);
    std::uint64_t x = (word ^ ((i + 1) * p)) * a;
    x ^= x >> 32;
    low += x * b;
    const std::uint64_t y = std::rotl(x, 29) * c;
    high += y ^ (y >> 31);
  }
  const std::uint64_t length = chunk.size() * l;
  return {mix(high + length), mix(low ^ length)};
}

}  // namespace

TEST_CASE("fingerprint: golden values", "[unit][base]") {
  CHECK(to_hex(fingerprint_of({})) == "00000000000000000000000000000000");
  CHECK(to_hex(fingerprint_of(counting(1))) == "fdcd91a0a5c86da0e57e3ecaa7ea0235");
  CHECK(to_hex(fingerprint_of(counting(4096))) == "2f11783f4860682f9532806c7d4b3ca3");
  CHECK(to_hex(fingerprint_of(counting(default_chunk_bytes))) ==
        "458f4991cb7039109bcaf676e80c9ed6");
  CHECK(to_hex(fingerprint_of(std::vector<std::byte>(default_chunk_bytes))) ==
        "4ba5e8f660aa524b5667912bfa6dbce8");
  CHECK(short_fingerprint(fingerprint_of(counting(1))) ==
        (0xfdcd91a0 ^ 0xa5c86da0 ^ 0xe57e3eca ^ 0xa7ea0235));
}

TEST_CASE("fingerprint: every length is as the document says", "[unit][base]") {
  // Several times what a vector takes, and each rest.
  for (std::size_t count = 0; count <= 330; ++count) {
    const auto bytes = counting(count);
    INFO(count << " bytes");
    REQUIRE(fingerprint_of(bytes) == by_the_document(bytes));
  }
}

TEST_CASE("fingerprint: a bit that flips changes both halves, wherever it lies", "[unit][base]") {
  auto bytes = counting(129);
  const Digest before = fingerprint_of(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    bytes[bit / 8] ^= mask;
    const Digest after = fingerprint_of(bytes);
    bytes[bit / 8] ^= mask;
    INFO("bit " << bit);
    REQUIRE(after.low != before.low);
    REQUIRE(after.high != before.high);
  }
}

TEST_CASE("fingerprint: words that change places, and zeros that come or go, are noticed",
          "[unit][base]") {
  std::set<Digest> seen;
  auto bytes = counting(64);
  REQUIRE(seen.insert(fingerprint_of(bytes)).second);
  for (std::size_t word = 0; word + 1 < 8; ++word) {
    auto swapped = bytes;
    std::swap_ranges(swapped.begin() + 8 * static_cast<long>(word),
                     swapped.begin() + 8 * static_cast<long>(word + 1),
                     swapped.begin() + 8 * static_cast<long>(word + 1));
    REQUIRE(seen.insert(fingerprint_of(swapped)).second);
  }
  for (std::size_t zeros = 0; zeros <= 40; ++zeros)
    REQUIRE(seen.insert(fingerprint_of(std::vector<std::byte>(zeros))).second);
}

TEST_CASE("fingerprint: parts add up in any order", "[unit][base]") {
  Random random(11);
  const auto bytes = counting(10'007);
  const Digest whole = fingerprint_of(bytes);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<std::size_t, std::size_t>> parts;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t end =
          std::min<std::size_t>(at + 8 * (1 + random.next() % 300), bytes.size());
      parts.emplace_back(at, end);
      at = end;
    }
    for (std::size_t i = parts.size(); i > 1; --i)
      std::swap(parts[i - 1], parts[random.next() % i]);
    FingerprintSum sums[2];
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto [begin, end] = parts[i];
      sums[i % 2].add(std::span(bytes).subspan(begin, end - begin), begin);
    }
    sums[0].add(sums[1]);
    REQUIRE(sums[0].finish(bytes.size()) == whole);
  }
}

}  // namespace ckpt
