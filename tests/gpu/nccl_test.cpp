// Goal:   on a real GPU, NCCL is opened, joined by one rank, broadcasts to itself, and ends; what
// is
//         aborted by a deadline of zero returns and leaves a GPU that goes on.
// Method: whatever driver and NCCL are there. Without NCCL the tests say so and check nothing. Real
//         NCCL refuses two ranks on one GPU; on the stand-in they get one another's bytes.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <ckpt/gpu_ranks.hpp>
#include <cstdio>
#include <optional>
#include <thread>

#include "base/units.hpp"
#include "gpu/gpu_here.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {

using std::chrono::milliseconds;

namespace {

constexpr milliseconds nccl_patience{25'000};

// Nothing: there is no NCCL here, and the log has the reason.
std::optional<GpuRanks> open_ranks() {
  auto ranks = GpuRanks::open({});
  if (!ranks) {
    REQUIRE(ranks.error().code() == Errc::unsupported);
    fmt::print("skipped, nothing of NCCL was checked: {}\n", ranks.error().text());
    return std::nullopt;
  }
  fmt::print("NCCL: {}\n", ranks->library_name());
  return std::move(*ranks);
}

// Parts of these sizes, with random bytes, on the GPU.
struct Parts {
  Parts(GpuTrainer& trainer_in, std::uint64_t seed) : trainer(trainer_in) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{13},
                                    std::size_t{4 * MiB + 5}, std::size_t{32 * MiB}}) {
      contents.push_back(random_bytes(bytes, seed + contents.size()));
      std::byte* const memory = trainer.allocate(std::max<std::size_t>(bytes, 1));
      if (bytes > 0) trainer.write(memory, contents.back());
      parts.push_back({memory, bytes});
    }
    trainer.synchronize();
  }
  std::vector<std::vector<std::byte>> read() const {
    std::vector<std::vector<std::byte>> found;
    for (const GpuPart& part : parts)
      found.push_back(part.bytes == 0
                          ? std::vector<std::byte>()
                          : trainer.read(static_cast<std::byte*>(part.data), part.bytes));
    return found;
  }

  GpuTrainer& trainer;
  std::vector<GpuPart> parts;
  std::vector<std::vector<std::byte>> contents;
};

Status join_alone(GpuRanks& ranks, milliseconds timeout = nccl_patience) {
  CKPT_TRY(const GpuRanks::Id id, ranks.make_id(nccl_patience));
  return ranks.join({0, 1, id, timeout});
}

}  // namespace

TEST_CASE("gpu nccl: a rank broadcasts to itself, some MiB, twice, and closes", "[gpu]") {
  const auto trainer = open_trainer();
  auto ranks = open_ranks();
  if (!ranks) return;
  const Parts parts(*trainer, 1);
  const Status joined = join_alone(*ranks);
  INFO((joined ? std::string() : joined.error().message()));
  REQUIRE(joined);
  for (int time = 0; time < 2; ++time) {
    const Status sent = ranks->broadcast({0, parts.parts, trainer->stream(), nccl_patience});
    INFO((sent ? std::string() : sent.error().message()));
    REQUIRE(sent);
    REQUIRE(ranks->is_quiet());
    REQUIRE(parts.read() == parts.contents);
  }
  REQUIRE(ranks->close(nccl_patience));
}

TEST_CASE("gpu nccl: a deadline of zero aborts, and the next communicator works", "[gpu]") {
  const auto trainer = open_trainer();
  auto ranks = open_ranks();
  if (!ranks) return;
  const Parts parts(*trainer, 2);
  const Status never = join_alone(*ranks, milliseconds(0));
  REQUIRE_FALSE(never);
  REQUIRE(never.error().code() == Errc::unavailable);
  REQUIRE(join_alone(*ranks));
  const Status sent = ranks->broadcast({0, parts.parts, trainer->stream(), milliseconds(0)});
  REQUIRE_FALSE(sent);
  REQUIRE(sent.error().code() == Errc::unavailable);
  REQUIRE(ranks->is_quiet());
  REQUIRE(ranks->close(nccl_patience));
  REQUIRE(join_alone(*ranks));
  REQUIRE(ranks->broadcast({0, parts.parts, trainer->stream(), nccl_patience}));
  REQUIRE(parts.read() == parts.contents);
}

TEST_CASE("gpu nccl: two ranks on one GPU have the same bytes, or are refused", "[gpu]") {
  const auto trainer = open_trainer();
  auto first = open_ranks();
  if (!first) return;
  auto second = GpuRanks::open({});
  REQUIRE(second);
  const Parts parts(*trainer, 3);
  const Parts others(*trainer, 100);
  const auto id = first->make_id(nccl_patience);
  REQUIRE(id);
  const auto take_part = [&](GpuRanks& ranks, std::uint32_t rank) -> Status {
    CKPT_CHECK(ranks.join({rank, 2, *id, nccl_patience}));
    return ranks.broadcast(
        {0, rank == 0 ? parts.parts : others.parts, trainer->stream(), nccl_patience});
  };
  Status of_second;
  std::thread thread([&] { of_second = take_part(*second, 1); });
  const Status of_first = take_part(*first, 0);
  thread.join();
  REQUIRE(of_first.has_value() == of_second.has_value());
  REQUIRE(parts.read() == parts.contents);
  if (of_second) {
    REQUIRE(others.read() == parts.contents);
  } else {
    fmt::print("refused: {}\n", of_second.error().text());
    REQUIRE(others.read() == others.contents);
  }
}

}  // namespace ckpt::test
