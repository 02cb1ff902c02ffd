// Goal:   checksums of a Slot that fills are taken as its bytes arrive, each Chunk once and only
//         when all of it is there; a capture that ends early, or lies, costs nothing but those.
// Method: a Slot of a few small Chunks, told of byte by byte; an executor that runs when told.
#include "node/early_checksums.hpp"

#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>

#include "base/random.hpp"
#include "base/units.hpp"

namespace ckpt::node {

namespace {

constexpr std::uint64_t chunk = 4 * KiB;
constexpr std::uint64_t capacity = 5 * chunk;

class PlainMemory final : public arena::SlotMemory {
 public:
  PlainMemory() {
    Random random(1);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random.next());
  }
  std::span<std::byte> bytes() override { return bytes_; }
  std::vector<os::FileSpan> file_spans(std::uint64_t, std::uint64_t) override { return {}; }
  std::vector<arena::SegmentView> segments() const override { return {}; }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(capacity);
};

struct Filling {
  Filling() { slot->begin_fill({{1, Step{7}}, 0}); }

  void arrive(std::uint64_t bytes) {
    early->arrived(bytes);
    context.restart();
    context.run();
  }
  Crc32 of(std::size_t index) const {
    return crc32(slot->memory().bytes().subspan(index * chunk, chunk));
  }

  asio::io_context context;
  std::shared_ptr<arena::Slot> slot =
      std::make_shared<arena::Slot>(std::make_unique<PlainMemory>());
  std::shared_ptr<EarlyChecksums> early =
      std::make_shared<EarlyChecksums>(context.get_executor(), nullptr, slot, chunk);
};

}  // namespace

TEST_CASE_METHOD(Filling, "early checksums: a Chunk is taken when all of it is there",
                 "[unit][node]") {
  const auto [arrived, taken] = GENERATE(table<std::uint64_t, std::size_t>({{0, 0},
                                                                            {1, 0},
                                                                            {chunk - 1, 0},
                                                                            {chunk, 1},
                                                                            {chunk + 1, 1},
                                                                            {2 * chunk, 2},
                                                                            {capacity - 1, 4},
                                                                            {capacity, 5},
                                                                            {capacity + 1, 5},
                                                                            {~0ull, 5}}));
  INFO(arrived << " bytes");
  arrive(arrived);
  const auto crcs = early->take();
  REQUIRE(crcs.size() == taken);
  for (std::size_t i = 0; i < taken; ++i) REQUIRE(crcs[i] == of(i));
}

TEST_CASE_METHOD(Filling, "early checksums: each Chunk once, also when bytes are reported again",
                 "[unit][node]") {
  for (const std::uint64_t bytes : {chunk, chunk, 3 * chunk, 2 * chunk, 4 * chunk + 7})
    arrive(bytes);
  const auto crcs = early->take();
  REQUIRE(crcs.size() == 4);
  for (std::size_t i = 0; i < crcs.size(); ++i) REQUIRE(crcs[i] == of(i));
}

TEST_CASE_METHOD(Filling, "early checksums: those under way end when they are taken",
                 "[unit][node]") {
  early->arrived(capacity);
  context.run_one();
  const auto crcs = early->take();
  REQUIRE(crcs.size() <= 1);
  context.run();
  REQUIRE(early->take().empty());
  arrive(capacity);
  REQUIRE(early->take().empty());
}

TEST_CASE_METHOD(Filling, "early checksums: a Slot that is abandoned is left alone",
                 "[unit][node]") {
  arrive(2 * chunk);
  slot->abandon();
  arrive(capacity);
  REQUIRE(early->take().size() == 2);
}

}  // namespace ckpt::node
