// Goal:   the checksum of runs is that of their bytes in a row, however they are cut.
// Method: runs of all sorts of lengths out of random bytes.
#include "gather/run_checksum.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "base/random.hpp"

namespace ckpt::gather {
namespace {

std::vector<std::byte> random_bytes(Random& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random.below(256));
  return bytes;
}

// Many short ones in a row, as a narrow tensor's rows are; in every other round some that are long.
std::size_t next_length(Random& random, int round, std::size_t left) {
  const bool is_long = round % 2 == 1 && random.one_in(8);
  return std::min<std::size_t>(left, random.below(is_long ? 5000 : random.one_in(3) ? 500 : 9));
}

}  // namespace

TEST_CASE("run checksum: runs count as if they lay in a row", "[unit][gather]") {
  Random random(5);
  for (int round = 0; round < 20; ++round) {
    const std::vector<std::byte> bytes = random_bytes(random, 40'000);
    RunChecksum checksum;
    for (std::size_t at = 0; at < bytes.size();) {
      const auto run = std::span(bytes).subspan(at, next_length(random, round, bytes.size() - at));
      checksum.add(run);
      at += run.size();
    }
    CHECK(checksum.value() == crc32(bytes));
  }
}

TEST_CASE("run checksum: a value may be asked for between two runs", "[unit][gather]") {
  Random random(6);
  const std::vector<std::byte> bytes = random_bytes(random, 100);
  RunChecksum checksum;
  CHECK(checksum.value() == 0);
  checksum.add(std::span(bytes).first(30));
  CHECK(checksum.value() == crc32(std::span(bytes).first(30)));
  checksum.add(std::span(bytes).subspan(30));
  CHECK(checksum.value() == crc32(bytes));
}

}  // namespace ckpt::gather
