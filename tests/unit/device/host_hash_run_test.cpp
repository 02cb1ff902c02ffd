// Goal:   a hash run takes the checksum of each stretch as the memory is between start and fence,
//         in any division among threads.
// Method: stretches around the size of a unit, and none, against checksums in one go.
#include "device/host_hash_run.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "base/random.hpp"
#include "base/units.hpp"

namespace ckpt::device {

namespace {

struct Ends final : CopyListener {
  void run_ended(Status status) override { endings += status.has_value(); }
  std::atomic<int> endings{0};
};

}  // namespace

TEST_CASE("hash run: checksums are those of the stretches", "[unit][device]") {
  std::vector<std::vector<std::byte>> memory(3);
  memory[0].resize(13 * MiB + 5);
  memory[1].resize(100);
  memory[2].resize(4 * MiB);
  Random random(3);
  for (auto& bytes : memory)
    for (std::size_t at = 0; at < bytes.size(); at += 7) bytes[at] = std::byte(random.below(256));
  CopyThreads threads(3);
  Ends ends;
  HostHashRun run(threads, {memory.begin(), memory.end()}, ends);
  const std::vector<std::vector<Stretch>> rounds = {
      {{0, memory[0].size()}, {0, 100}, {0, 4 * MiB}},
      {{3, 4 * MiB}, {99, 1}, {0, 0}},
      {{5 * MiB + 1, 4 * MiB + 1}, {0, 0}, {4 * MiB, 0}},
      {{0, 0}, {0, 0}, {1, 4 * MiB - 1}}};
  for (const auto& stretches : rounds) {
    run.choose(stretches);
    REQUIRE(run.start({}));
    REQUIRE(run.fence({}));
    REQUIRE(run.wait_idle(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
    REQUIRE(run.checksums().size() == memory.size());
    for (std::size_t source = 0; source < memory.size(); ++source) {
      const Stretch& stretch = stretches[source];
      CHECK(run.checksums()[source] ==
            crc32(std::span(memory[source]).subspan(stretch.offset, stretch.bytes)));
    }
  }
  CHECK(ends.endings == 4);
}

}  // namespace ckpt::device
