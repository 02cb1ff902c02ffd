// Goal:   in the course of some saves every byte of a tensor is sampled, with about as many bytes
//         at each save, whatever the interval of the steps.
// Method: samples of many steps are laid over each other; random sizes, parts and intervals.
#include "plan/sample.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "base/random.hpp"

namespace ckpt::plan {

namespace {

// How many steps, `interval` apart, until all of it was sampled; the limit if some never was.
std::uint64_t steps_to_cover(const SampledTensor& tensor, std::uint64_t interval,
                             std::uint64_t limit) {
  std::vector<Sample> seen;
  for (std::uint64_t count = 1; count <= limit; ++count) {
    const auto sample = sample_of(tensor, count * interval);
    if (!sample) continue;
    REQUIRE(sample->bytes > 0);
    REQUIRE(sample->offset + sample->bytes <= tensor.bytes);
    seen.push_back(*sample);
    std::ranges::sort(seen, {}, &Sample::offset);
    std::uint64_t covered = 0;
    for (const Sample& each : seen)
      if (each.offset <= covered) covered = std::max(covered, each.offset + each.bytes);
    if (covered == tensor.bytes) return count;
  }
  return limit;
}

}  // namespace

TEST_CASE("sample: every byte has its turn, whatever the interval", "[unit][plan]") {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    SampledTensor tensor;
    tensor.bytes = 1 + random.below(random.one_in(2) ? 3 * sample_bytes_min : 300 << 20);
    tensor.parts = static_cast<std::uint32_t>(16 * (1 + random.below(8)));
    tensor.spread = random.next();
    const std::uint64_t interval = 1 + random.below(1000);
    CAPTURE(tensor.bytes, tensor.parts, tensor.spread, interval);
    const std::uint64_t limit = std::uint64_t{40} * tensor.parts;
    CHECK(steps_to_cover(tensor, interval, limit) < limit);
  }
}

TEST_CASE("sample: a save samples about one part of all tensors", "[unit][plan]") {
  constexpr std::uint32_t parts = 64;
  Random random(11);
  std::vector<SampledTensor> tensors;
  std::uint64_t bytes = 0;
  for (int index = 0; index < 3000; ++index) {
    tensors.push_back({1 + random.below(20 << 20), parts, random.next()});
    bytes += tensors.back().bytes;
  }
  for (std::uint64_t step = 10; step <= 500; step += 10) {
    std::uint64_t sampled = 0;
    std::size_t count = 0;
    for (const SampledTensor& tensor : tensors) {
      const auto sample = sample_of(tensor, step);
      if (!sample) continue;
      sampled += sample->bytes;
      ++count;
    }
    CHECK(sampled > bytes / parts / 2);
    CHECK(sampled < bytes / parts * 2);
    CHECK(count < tensors.size() / 2);  // Notes of small ones do not pile up.
  }
}

TEST_CASE("sample: one part is all of a tensor", "[unit][plan]") {
  for (std::uint64_t step = 1; step < 5; ++step) {
    const auto sample = sample_of({5 * sample_bytes_min, 1, 77}, step);
    REQUIRE(sample);
    CHECK((sample->offset == 0 && sample->bytes == 5 * sample_bytes_min));
  }
}

}  // namespace ckpt::plan
