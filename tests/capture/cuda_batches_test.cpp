// Goal:   the copies of a capture are few and large, come in batches that a link carries in half a
//         millisecond, never cross what the driver forbids, and miss no byte.
// Method: plans of lists around the limits; each plan is carried out on paper, and the byte that
//         each copy brings is compared with the one that the list asks for.
#include "device/cuda_batches.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "device/gpus.hpp"
#include "device/token_bucket.hpp"

namespace ckpt::test {

using device::CopyList;
using device::CudaBatches;
using std::chrono::milliseconds;

namespace {

const std::byte* on_gpu(std::uint64_t address) {
  return reinterpret_cast<const std::byte*>(address);
}

void add(CopyList& list, std::uint64_t address, std::uint64_t offset, std::uint64_t bytes) {
  list.strips.push_back({offset, bytes, list.pieces.size(), 1});
  list.pieces.push_back({on_gpu(address), offset, bytes});
}

CudaBatches plan(const CopyList& list, const device::BatchLimits& limits = {},
                 const std::set<std::uint64_t>& beginnings = {}) {
  return plan_batches(list, limits, [&](const std::byte* data) {
    return beginnings.contains(reinterpret_cast<std::uintptr_t>(data));
  });
}

// The plan's faults; empty: every piece arrives, once, from where it lies.
std::string faults(const CopyList& list, const CudaBatches& plan,
                   std::uint64_t pin_piece_bytes = 1 * GiB) {
  std::map<std::uint64_t, std::pair<std::uint64_t, const std::byte*>> arrives;  // By offset.
  std::uint64_t copied = 0;
  std::size_t next_copy = 0;
  std::size_t strips = 0;
  for (const device::CudaBatch& batch : plan.batches) {
    if (batch.first_copy != next_copy) return "batches do not follow each other";
    next_copy += batch.copy_count;
    if (batch.strips_end < strips) return "a strip arrives twice";
    strips = batch.strips_end;
  }
  if (next_copy != plan.copies.size()) return "a copy is in no batch";
  if (!plan.batches.empty() && strips != list.strips.size()) return "a strip never arrives";
  for (const device::CudaCopy& copy : plan.copies) {
    arrives[copy.slot_offset] = {copy.bytes, copy.source};
    copied += copy.bytes;
    const std::uint64_t last = copy.slot_offset + copy.bytes - 1;
    if (copy.slot_offset / pin_piece_bytes != last / pin_piece_bytes)
      return "a copy crosses from one registration to the next";
  }
  std::uint64_t asked = 0;
  for (const device::CopyPiece& piece : list.pieces) {
    asked += piece.bytes;
    const auto found = std::prev(arrives.upper_bound(piece.slot_offset));
    const std::uint64_t within = piece.slot_offset - found->first;
    if (within >= found->second.first) return "a piece is not copied";
    if (found->second.second + within != piece.source) return "a piece comes from elsewhere";
  }
  return asked == copied ? "" : "not as many bytes as were asked for";
}

}  // namespace

TEST_CASE("batches: they are of the size that design and link want", "[unit][device]") {
  const device::GpuOptions options;
  REQUIRE(options.batch_bytes >= 16 * MiB);
  REQUIRE(options.batch_bytes <= 64 * MiB);
  CopyList list;
  for (std::uint64_t at = 0; at < 500 * MiB; at += 4 * MiB) add(list, 1 * GiB + at, at, 4 * MiB);
  const CudaBatches batches = plan(list, {options.batch_bytes, options.batch_copies_max});
  REQUIRE(faults(list, batches) == "");
  for (std::size_t i = 0; i + 1 < batches.batches.size(); ++i) {
    REQUIRE(batches.batches[i].bytes >= 16 * MiB);
    REQUIRE(batches.batches[i].bytes <= 64 * MiB);
    REQUIRE(batches.batches[i].copy_count == 1);  // Neighbours are one copy.
  }
}

TEST_CASE("batches: tensors apart, or in two allocations, are copied apart", "[unit][device]") {
  CopyList list;
  add(list, 1 * GiB, 0, 8 * KiB);
  add(list, 1 * GiB + 8 * KiB, 8 * KiB, 8 * KiB);    // Neighbours in both places.
  add(list, 1 * GiB + 17 * KiB, 16 * KiB, 8 * KiB);  // A gap on the GPU.
  add(list, 1 * GiB + 25 * KiB, 25 * KiB, 8 * KiB);  // A gap in the Slot.
  const CudaBatches together = plan(list);
  REQUIRE(faults(list, together) == "");
  REQUIRE(together.copies.size() == 3);
  const CudaBatches apart = plan(list, {}, {1 * GiB + 8 * KiB});
  REQUIRE(faults(list, apart) == "");
  REQUIRE(apart.copies.size() == 4);
}

TEST_CASE("batches: no copy crosses from one registration to the next", "[unit][device]") {
  CopyList list;
  const std::uint64_t piece = GENERATE(1 * GiB, 256 * MiB);
  const std::uint64_t before = piece - 3;
  add(list, 8 * GiB, before, 6);            // Across one itself.
  add(list, 8 * GiB + 6, before + 6, 100);  // Its neighbour.
  add(list, 8 * GiB + 106, before + 106, 2 * GiB);
  const CudaBatches batches = plan(list, {16 * GiB, 1024, piece});
  REQUIRE(faults(list, batches, piece) == "");
  REQUIRE(batches.copies.size() == 1 + div_ceil(103 + 2 * GiB, piece));
}

TEST_CASE("batches: many small tensors end a batch as many bytes do", "[unit][device]") {
  CopyList list;
  for (std::uint64_t i = 0; i < 5000; ++i) add(list, 1 * GiB + i * 64, i * 32, 32);
  const CudaBatches batches = plan(list);
  REQUIRE(faults(list, batches) == "");
  REQUIRE(batches.batches.size() == 5);
  for (const auto& batch : batches.batches) REQUIRE(batch.copy_count <= 1024);
}

TEST_CASE(
    "batches: thousands of scalars within one strip are several batches, and a strip arrives "
    "with the last of them",
    "[unit][device]") {
  CopyList list;
  constexpr std::size_t scalars = 3000;
  add(list, 1 * GiB, 0, 4 * KiB);
  device::Strip strip{4 * KiB, scalars * 4, list.pieces.size(), scalars};
  for (std::uint64_t i = 0; i < scalars; ++i)
    list.pieces.push_back({on_gpu(2 * GiB + i * 512), 4 * KiB + i * 4, 4});
  list.strips.push_back(strip);
  const CudaBatches batches = plan(list);
  REQUIRE(faults(list, batches) == "");
  REQUIRE(batches.batches.size() == 3);
  std::uint64_t bytes = 0;
  for (const auto& batch : batches.batches) {
    REQUIRE(batch.copy_count <= 1024);
    bytes += batch.bytes;
  }
  REQUIRE(bytes == 4 * KiB + scalars * 4);
  REQUIRE(batches.batches[0].strips_end == 1);
  REQUIRE(batches.batches[1].strips_end == 1);
  REQUIRE(batches.batches[2].strips_end == 2);
}

TEST_CASE("batches: padding is written by the host, and comes with the last batch",
          "[unit][device]") {
  CopyList list;
  add(list, 1 * GiB, 0, 4 * KiB);
  list.strips.push_back({4 * KiB, 10, 1, 1});
  list.pieces.push_back({nullptr, 4 * KiB, 10});
  const CudaBatches batches = plan(list);
  REQUIRE(batches.copies.size() == 1);
  REQUIRE(batches.zeros.size() == 1);
  REQUIRE(batches.zeros[0].slot_offset == 4 * KiB);
  REQUIRE(batches.zeros[0].bytes == 10);
  REQUIRE(batches.batches.back().strips_end == 2);
  REQUIRE(plan({}).batches.empty());
}

TEST_CASE("bucket: it gives what its rate allows, a burst first, and no size waits forever",
          "[unit][device]") {
  const device::TokenBucket::Time start = device::TokenBucket::Time{} + std::chrono::hours(1);
  device::TokenBucket bucket(1000, 100);  // A byte in a millisecond.
  REQUIRE(bucket.take(60, start));
  REQUIRE_FALSE(bucket.take(60, start));
  REQUIRE_FALSE(bucket.take(60, start + milliseconds(19)));
  REQUIRE(bucket.take(60, start + milliseconds(20)));
  // Nothing is saved up beyond the burst, however long nobody asks.
  REQUIRE(bucket.take(100, start + std::chrono::hours(2)));
  REQUIRE_FALSE(bucket.take(1, start + std::chrono::hours(2)));
  // More than the burst goes when the bucket is full, and is paid for afterwards.
  const auto later = start + std::chrono::hours(3);
  REQUIRE(bucket.take(300, later));
  REQUIRE_FALSE(bucket.take(1, later + milliseconds(200)));
  REQUIRE(bucket.take(1, later + milliseconds(201)));
  // Over long, the rate: of ten seconds, ten thousand bytes and what was saved up.
  device::TokenBucket paced(1000, 100);
  std::uint64_t taken = 0;
  for (int at = 0; at <= 10'000; ++at) taken += paced.take(32, start + milliseconds(at)) ? 32 : 0;
  REQUIRE(taken <= 10'100);
  REQUIRE(taken >= 10'000);
  device::TokenBucket unlimited(0, 1);
  for (int i = 0; i < 100; ++i) REQUIRE(unlimited.take(1 * GiB, start));
}

TEST_CASE("batches: behind a fence a state of any size is a hundred groups or a few more",
          "[unit][device]") {
  REQUIRE(device::together_bytes_max(0) == 256 * MiB);
  REQUIRE(device::together_bytes_max(20 * GiB) == 256 * MiB);
  // A stream has room for a thousand launches, and a group takes some of them.
  for (const std::uint64_t left : {1 * GiB, 30 * GiB, 141 * GiB, 1000 * GiB})
    REQUIRE(left / device::together_bytes_max(left) <= 101);
}

}  // namespace ckpt::test
