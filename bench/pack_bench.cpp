// Compression of bf16 weights by one core: how small, against what their entropy allows, and how
// fast. It counts the time that the core worked for it, since others use it as well.
#include <time.h>

#include <bit>
#include <random>
#include <vector>

#include "base/units.hpp"
#include "bench/harness.hpp"
#include "bench/must.hpp"
#include "storage/frame_codec.hpp"

namespace {

using Bytes = std::vector<std::byte>;

// Normally distributed, as of a fresh model. Their entropy lets them shrink to 1 / 1.51.
constexpr double deviation = 0.02;
constexpr double entropy_bound = 1.51;

Bytes make_weights(std::size_t bytes) {
  std::mt19937_64 random(22);
  std::normal_distribution<float> normal(0, deviation);
  Bytes weights(bytes);
  for (std::size_t at = 0; at + 2 <= bytes; at += 2) {
    const auto bits = std::bit_cast<std::uint32_t>(normal(random));
    const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // To even.
    weights[at] = static_cast<std::byte>(rounded & 0xff);
    weights[at + 1] = static_cast<std::byte>(rounded >> 8);
  }
  return weights;
}

// As bench::rate, by the processor time of this thread.
double core_rate(double amount, const std::function<void()>& work) {
  const auto seconds = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = seconds();
  work();
  return amount / (seconds() - before);
}

struct Packed {
  std::vector<Bytes> frames;  // One for each Chunk.
  std::uint64_t bytes = 0;
};

Packed pack(const Bytes& weights) {
  Packed packed;
  for (std::size_t at = 0; at < weights.size(); at += ckpt::default_chunk_bytes) {
    const std::size_t size = std::min<std::size_t>(ckpt::default_chunk_bytes, weights.size() - at);
    const std::span<const std::byte> chunk = std::span(weights).subspan(at, size);
    Bytes frame(size);
    const auto done = bench::must(ckpt::storage::pack_frame(std::span(&chunk, 1), 2, {}, frame));
    frame.resize(done);
    packed.bytes += ckpt::align_up(done == 0 ? size : done, ckpt::page_bytes);
    packed.frames.push_back(std::move(frame));
  }
  return packed;
}

void unpack(const Packed& packed, std::span<std::byte> target) {
  std::size_t at = 0;
  for (const Bytes& frame : packed.frames) {
    const std::size_t size = std::min<std::size_t>(ckpt::default_chunk_bytes, target.size() - at);
    if (!frame.empty())
      bench::must(ckpt::storage::unpack_frame(frame, 2, target.subspan(at, size)));
    at += size;
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::Harness harness("pack", argc, argv);
  const std::size_t bytes = std::min<std::size_t>(harness.bytes(), 128 * ckpt::MiB);
  const Bytes weights = make_weights(bytes);
  Bytes target(bytes);
  const auto amount = static_cast<double>(bytes);
  Packed packed = pack(weights);
  unpack(packed, target);
  if (target != weights) bench::give_up("what was packed did not come back");

  constexpr double per_giga = 1e-9;
  std::vector<double> packing, opening;
  for (std::size_t round = 0; round < harness.pairs(); ++round) {
    packing.push_back(per_giga * core_rate(amount, [&] { packed = pack(weights); }));
    opening.push_back(per_giga * core_rate(amount, [&] { unpack(packed, target); }));
  }
  const double ratio = amount / static_cast<double>(packed.bytes);
  bench::Bar smaller{"B22", "bf16, compressed: ratio / that of its entropy", 0.95, 0.90};
  smaller.unit = "of 1.51";
  bench::Bar fast{"B22", "bf16, compressing, one core", 0.4, 0.3};
  fast.unit = "GB/s";
  bench::Bar back{"B22", "bf16, opening what was compressed, one core"};
  back.unit = "GB/s";
  harness.sample(smaller, 0.5, {ratio / entropy_bound});
  harness.sample(fast, 0.5, packing);
  harness.sample(back, 0.5, opening);
  return harness.finish();
}
