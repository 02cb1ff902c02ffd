// Goal:   ranks whose GPUs hold copies of a tensor, of which each captures a part, find out that
//         one of them differs, also in bytes that the others capture; without fingerprints, nothing
//         is compared there.
// Method: a session for each rank on the stand-in driver, whose engine keeps the notes; these are
//         compared as the publisher does it.
#include <catch2/catch.hpp>
#include <vector>

#include "base/units.hpp"
#include "client/checkpoint_session.hpp"
#include "storage/copies.hpp"
#include "support/cuda_stand_in/stand_in.hpp"
#include "support/random_bytes.hpp"
#include "support/temporary_directory.hpp"
#include "unit/client/fake_engine.hpp"

namespace ckpt::test {

namespace {

constexpr std::uint64_t elements = 5 * MiB + 3;
using Notes = std::vector<format::CopyNote>;

struct RankOptions {
  std::uint32_t copies = 2;
  bool has_fingerprints = true;
  Location location = Location::cuda;
};

// The notes of one rank at a step that will be stored, or at another one.
class RankOnGpu {
 public:
  RankOnGpu(std::uint32_t rank, const RankOptions& asked) : asked_(asked), trainer_("seed=3") {
    options_.job = "copies";
    options_.rank = rank;
    options_.world_size = asked.copies;
    options_.dir = directory_.path();
    options_.save_storage_interval = {10, {}};
    options_.gpu_gap = GpuGap::memset;
    options_.gpu_check = asked.has_fingerprints;
    on_host_ = random_bytes(elements, 1);
  }
  Notes save(std::uint64_t step) {
    const auto node = std::make_shared<FakeNode>();
    node->reached = Level::committed;  // The other ranks' parts are there, too.
    client::CheckpointSession session(options_, link_to(node));
    TensorRef tensor;
    tensor.dtype = DType::u8;
    tensor.shape = {elements};
    tensor.guarded = true;
    tensor.piece = Piece{{elements}, {0}, {}, {}, options_.rank, asked_.copies};
    tensor.location = asked_.location;
    tensor.data = on_host_.data();
    if (asked_.location == Location::cuda) {
      std::byte* const data = trainer_.allocate(elements);
      trainer_.write(data, on_host_);
      tensor.data = data;
    }
    REQUIRE(session.add("matrix", tensor));
    REQUIRE(session.save(Step{step}, trainer_.stream(), client::Due::always).value() ==
            SaveOutcome::started);
    REQUIRE(session.guard(trainer_.stream()));
    REQUIRE(session.close(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
    const std::lock_guard lock(node->mutex);
    REQUIRE(node->copies.size() == 1);
    return node->copies.front();
  }
  void flip(std::uint64_t at) { on_host_[at] ^= std::byte{1}; }

 private:
  const RankOptions asked_;
  TemporaryDirectory directory_;
  StandInTrainer trainer_;
  Options options_;
  std::vector<std::byte> on_host_;
};

Notes notes_of(std::uint32_t rank, const RankOptions& asked, std::uint64_t step = 10) {
  return RankOnGpu(rank, asked).save(step);
}

std::vector<storage::CopyDifference> differences(const std::vector<Notes>& of_ranks) {
  storage::CopyComparison comparison;
  for (std::uint32_t rank = 0; rank < of_ranks.size(); ++rank) {
    const Digest digest{1, rank};
    comparison.add_rank(rank, digest);
    comparison.add_notes(digest, of_ranks[rank]);
  }
  return comparison.differences();
}

}  // namespace

TEST_CASE("held copies: GPUs with equal copies agree, and one that differs anywhere is named",
          "[unit][capture]") {
  const Notes first = notes_of(0, {});
  REQUIRE(first.size() == 1);
  REQUIRE(differences({first, notes_of(1, {})}).empty());
  // At both ends, on the own share's side and on the other's, and where no word is whole.
  for (const std::uint64_t at : {std::uint64_t{0}, elements / 4, elements / 2 + 1, elements - 1}) {
    RankOnGpu damaged(1, {});
    damaged.flip(at);
    const auto found = differences({first, damaged.save(10)});
    INFO("byte " << at);
    REQUIRE(found.size() == 1);
    REQUIRE(found.front().name == "matrix");
    REQUIRE(found.front().ranks == std::vector<std::vector<std::uint32_t>>{{0}, {1}});
  }
}

TEST_CASE("held copies: other saves of GPUs compare a sample, the same on all ranks",
          "[unit][capture]") {
  std::size_t samples = 0;
  for (std::uint64_t step = 1; step < 10; ++step) {
    const Notes here = notes_of(0, {}, step);
    const Notes there = notes_of(1, {}, step);
    REQUIRE(here == there);
    REQUIRE(here != notes_of(0, {}));
    samples += here.size();
  }
  REQUIRE(samples < 9);
}

TEST_CASE("held copies: a tensor with many copies on GPUs is compared by parts",
          "[unit][capture]") {
  // Sixteen copies: half of it, and another half at another step.
  std::size_t found = 0;
  for (std::uint64_t step = 10; step <= 80; step += 10) {
    const RankOptions asked{16};
    RankOnGpu damaged(3, asked);
    damaged.flip(100);
    const Notes there = damaged.save(step);
    const Notes here = notes_of(0, asked, step);
    REQUIRE(here.size() == 1);
    REQUIRE(here.front().identity == there.front().identity);
    found += here == there ? 0 : 1;
  }
  REQUIRE(found > 0);
  REQUIRE(found < 8);
}

TEST_CASE("held copies: those on a GPU without fingerprints are not compared", "[unit][capture]") {
  RankOptions asked;
  asked.has_fingerprints = false;
  REQUIRE(notes_of(0, asked).empty());
}

TEST_CASE("held copies: a copy on the host is not compared with one on a GPU", "[unit][capture]") {
  RankOptions on_host;
  on_host.location = Location::host;
  const Notes here = notes_of(0, on_host);
  const Notes there = notes_of(1, {});
  REQUIRE(here.size() == 1);
  REQUIRE(there.size() == 1);
  REQUIRE(here.front().identity != there.front().identity);
  REQUIRE(differences({here, there}).empty());
}

}  // namespace ckpt::test
