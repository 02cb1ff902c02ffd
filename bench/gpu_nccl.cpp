// NCCL in a restore, as far as one GPU shows it: what a communicator costs, and a broadcast of one
// rank to itself, which NCCL has nothing to copy for.
#include <ckpt/gpu_ranks.hpp>

#include "bench/gpu_parts.hpp"

namespace bench {

using ckpt::GpuBroadcast;
using ckpt::GpuPart;
using ckpt::GpuRanks;
using ckpt::MiB;
using ckpt::test::GpuTrainer;

namespace {

constexpr std::chrono::milliseconds patience{20'000};
constexpr std::size_t part_bytes_max = 64 * MiB;

// The milliseconds from the id to the end of joining, and of the end.
std::pair<double, double> join_and_close(GpuRanks& ranks) {
  const auto began = std::chrono::steady_clock::now();
  must(ranks.join({0, 1, must(ranks.make_id(patience)), patience}));
  const double joined_ms = milliseconds_since(began);
  const auto joined_at = std::chrono::steady_clock::now();
  must(ranks.close(patience));
  return {joined_ms, milliseconds_since(joined_at)};
}

}  // namespace

void measure_nccl(Harness& harness, GpuTrainer& trainer) {
  auto opened = GpuRanks::open({});
  if (!opened) {
    fmt::print("G15 skipped: {}\n", opened.error().text());
    return;
  }
  GpuRanks& ranks = *opened;
  const std::string library = ranks.library_name();
  harness.add_condition(library.substr(library.rfind('(')));  // Its version, without its place.
  (void)join_and_close(ranks);                                // The first one loads code.
  std::vector<double> joins_ms;
  std::vector<double> closes_ms;
  for (std::size_t i = 0; i < harness.pairs(); ++i) {
    const auto [join_ms, close_ms] = join_and_close(ranks);
    joins_ms.push_back(join_ms);
    closes_ms.push_back(close_ms);
  }
  const auto lower = Better::lower;
  harness.sample(
      {"G15 join", "a communicator of one rank, from its id on", 1000, 5000, lower, "ms", false},
      0.5, joins_ms);
  harness.sample({"G15 close", "its end", 1000, 5000, lower, "ms", false}, 0.5, closes_ms);

  const std::size_t bytes = std::min<std::size_t>(harness.bytes(), GpuRanks::bytes_max);
  const std::size_t part_bytes = std::min(bytes, part_bytes_max);
  std::byte* const memory = trainer.allocate(bytes);
  trainer.fill(memory, 0x5a5a5a5a, bytes / sizeof(std::uint32_t));
  GpuBroadcast broadcast;
  broadcast.after = trainer.stream();
  for (std::size_t at = 0; at + part_bytes <= bytes; at += part_bytes)
    broadcast.parts.push_back({memory + at, part_bytes});
  must(ranks.join({0, 1, must(ranks.make_id(patience)), patience}));
  std::vector<double> gigabytes;
  for (std::size_t i = 0; i <= harness.pairs(); ++i) {
    const auto sent = static_cast<double>(broadcast.parts.size() * part_bytes);
    const double per_second = rate(sent, [&] { must(ranks.broadcast(broadcast)); });
    if (i > 0) gigabytes.push_back(per_second / 1e9);
  }
  must(ranks.close(patience));
  trainer.free(memory);
  harness.sample({"G15", "a broadcast of one rank to itself, with fingerprints", 100, 20,
                  Better::higher, "GB/s", false},
                 0.5, gigabytes);
}

}  // namespace bench
