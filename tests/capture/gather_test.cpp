// Goal:   small tensors that a kernel copies arrive whole, whatever their addresses and sizes, in
//         the order of the stream as the copies do; and where the kernel cannot be had, they arrive
//         all the same.
// Method: the lanes of a warp on memory of the host, for each alignment and many sizes; plans on
//         paper; and the trainer of capture_world.hpp with the kernel on, with each of its faults.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "capture/capture_world.hpp"
#include "capture/planted_failures.hpp"
#include "device/cuda_gather_plan.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {

using device::CudaBatches;
using device::gather_small;
using device::GatherEntry;

namespace {

constexpr std::size_t margin = 64;
constexpr std::byte ungathered{0xa5};

// A warp copies `bytes` between addresses that are so far from a multiple of 64. Returns "" if the
// target has exactly these.
std::string fault_of(std::size_t from, std::size_t to, std::size_t bytes) {
  alignas(64) static std::array<std::byte, 24 * KiB> source, target;
  const auto content = random_bytes(bytes, bytes * 7 + from * 3 + to);
  std::ranges::copy(content, source.begin() + static_cast<std::ptrdiff_t>(from));
  target.fill(ungathered);
  GatherEntry entry;
  entry.source = reinterpret_cast<std::uint64_t>(source.data() + from);
  entry.slot_offset = margin + to;
  entry.bytes = bytes;
  // One part more than there are: it lies beyond the end.
  for (std::uint64_t part = 0; part <= div_ceil(bytes, device::gather_part_bytes); ++part)
    for (unsigned lane = 0; lane < device::gather_lanes; ++lane)
      gather_part(entry, part, reinterpret_cast<unsigned char*>(target.data()), lane);
  const std::span<const std::byte> all(target);
  const auto is_untouched = [](std::span<const std::byte> around) {
    return std::ranges::all_of(around, [](std::byte byte) { return byte == ungathered; });
  };
  if (!is_untouched(all.first(margin + to))) return "bytes before it were written";
  if (!is_untouched(all.subspan(margin + to + bytes))) return "bytes behind it were written";
  const bool is_equal = std::ranges::equal(all.subspan(margin + to, bytes), content);
  return is_equal ? "" : "other bytes";
}

CudaBatches plan_of(const std::vector<std::uint64_t>& sizes, std::size_t batch_copies) {
  device::CopyList list;
  std::uint64_t offset = 0;
  for (const std::uint64_t bytes : sizes) {
    list.strips.push_back({offset, bytes, list.pieces.size(), 1});
    // Apart from each other, so that no two become one copy.
    list.pieces.push_back(
        {reinterpret_cast<const std::byte*>(8 * GiB + 2 * offset), offset, bytes});
    offset += bytes;
  }
  return plan_batches(list, {32 * MiB, batch_copies}, [](const std::byte*) { return true; });
}

// So many tensors of 100 bytes on a GPU, apart from each other.
device::CopyList small_tensors(std::byte* first, std::size_t count) {
  constexpr std::uint64_t bytes = 100;
  device::CopyList list;
  for (std::size_t i = 0; i < count; ++i) {
    list.strips.push_back({i * bytes, bytes, i, 1});
    list.pieces.push_back({first + 2 * i * bytes, i * bytes, bytes});
  }
  return list;
}

struct NoListener final : device::CopyListener {
  void run_ended(Status) override {}
};

WorldOptions gathering_options(std::uint64_t seed, const std::string& words = "") {
  WorldOptions options = options_of(seed, words);
  options.device.gather = GpuGather::on;
  return options;
}

std::uint64_t launches(GpuGather gather, std::size_t tensors) {
  WorldOptions options = gathering_options(3);
  options.device.gather = gather;
  options.tensors = tensors;
  CaptureWorld world(options);
  REQUIRE(world.run(1));
  return stand_in().counts().kernels;
}

}  // namespace

TEST_CASE("gather: lanes copy every byte once, for each alignment of source and target",
          "[unit][device]") {
  for (std::size_t from = 0; from < 17; ++from) {
    for (std::size_t to = 0; to < 17; ++to) {
      for (const std::size_t bytes : {0, 1, 4, 15, 16, 17, 31, 512, 513, 1021}) {
        INFO(bytes << " bytes from " << from << " to " << to);
        REQUIRE(fault_of(from, to, bytes) == "");
      }
    }
  }
  constexpr std::size_t part = device::gather_part_bytes;
  for (const std::size_t bytes : {part - 1, part, part + 1, 2 * part, 2 * part + 3}) {
    INFO(bytes << " bytes");
    REQUIRE(fault_of(0, 0, bytes) == "");
    REQUIRE(fault_of(4, 2, bytes) == "");
  }
}

TEST_CASE("gather: only small copies go by kernel, and only where there are enough of them",
          "[unit][device]") {
  const std::vector<std::uint64_t> sizes = {64 * KiB, 64 * KiB - 1, 1, 2 * MiB, 4 * KiB, 64 * KiB};
  const CudaBatches all = plan_of(sizes, 3);
  REQUIRE(all.copies.size() == sizes.size());
  REQUIRE(gather_small(all, {}).gathered.empty());
  REQUIRE(gather_small(all, {64 * KiB, 4}).gathered.empty());
  const CudaBatches some = gather_small(all, {64 * KiB, 3});
  REQUIRE(some.gathered.size() == 3);
  REQUIRE(some.copies.size() == 3);
  REQUIRE(some.batches.size() == 2);
  // Each batch brings the same bytes as before.
  for (std::size_t i = 0; i < all.batches.size(); ++i) {
    const device::CudaBatch& batch = some.batches[i];
    REQUIRE(batch.copy_count + batch.gathered_count == all.batches[i].copy_count);
    REQUIRE(batch.strips_end == all.batches[i].strips_end);
    std::uint64_t bytes = 0;
    for (std::size_t at = 0; at < batch.copy_count; ++at)
      bytes += some.copies[batch.first_copy + at].bytes;
    for (std::size_t at = 0; at < batch.gathered_count; ++at)
      bytes += some.gathered[batch.first_gathered + at].bytes;
    REQUIRE(bytes == batch.bytes);
  }
  const std::vector<GatherEntry> table = gather_table(some);
  REQUIRE(table.size() == 3);
  REQUIRE(table[1].bytes == 1);
  REQUIRE(table[1].slot_offset == 128 * KiB - 1);
  REQUIRE(table[1].source == 8 * GiB + 2 * (128 * KiB - 1));
  REQUIRE(device::gather_parts(some.gathered) == 8);
  REQUIRE(device::gather_parts(std::span(some.gathered).subspan(1, 1)) == 1);
}

TEST_CASE("gather: every step's bytes are right, for many orders of things", "[unit][capture]") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    WorldOptions options = gathering_options(seed);
    options.is_pinned = seed % 6 != 0;
    options.gpus = seed % 5 == 0 ? 2 : 1;
    if (seed % 3 == 0) options.words += " fifo=1";
    if (seed % 7 == 0) options.words += " connections=1";
    if (seed % 4 == 0) options.words += " version=12000";
    CaptureWorld world(options);
    INFO("seed " << seed << ": " << world.first_error());
    const bool is_good = world.run(6);
    INFO(world.findings());
    REQUIRE(is_good);
    REQUIRE(world.good() == 6);
    // One at each first use of a GPU, with nothing to do.
    const std::uint64_t empty = options.gpus;
    if (options.is_pinned) REQUIRE(stand_in().counts().kernels >= empty + 6);
    if (!options.is_pinned) REQUIRE(stand_in().counts().kernels == empty);
  }
}

TEST_CASE("gather: it is used for 64 tensors and more unless it is asked for or forbidden",
          "[unit][capture]") {
  // Half of the sizes are below 64 KiB, but for neighbours that are one copy.
  REQUIRE(launches(GpuGather::off, 240) == 0);
  REQUIRE(launches(GpuGather::automatic, 24) == 1);
  REQUIRE(launches(GpuGather::automatic, 240) > 1);
  REQUIRE(launches(GpuGather::on, 24) > 1);
}

TEST_CASE("gather: by itself it stays away where all streams share one queue", "[unit][capture]") {
  REQUIRE(::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1) == 0);
  const std::uint64_t by_itself = launches(GpuGather::automatic, 240);
  const std::uint64_t asked_for = launches(GpuGather::on, 240);
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  REQUIRE(by_itself == 0);
  REQUIRE(asked_for > 1);
}

TEST_CASE("gather: a thousand small tensors are a launch for each batch", "[unit][capture]") {
  WorldOptions options = gathering_options(5);
  options.tensors = 1200;
  options.guarded = Guarded::all;
  options.device = {0, 64 * MiB, 1024};
  options.device.gather = GpuGather::automatic;
  CaptureWorld world(options);
  const bool is_good = world.run(1);
  INFO(world.findings() << world.first_error());
  REQUIRE(is_good);
  // The empty one, and two batches of at most 1,024 copies.
  REQUIRE(stand_in().counts().kernels == 3);
  // The copy engine has the tables of both batches and the 300 large tensors.
  REQUIRE(stand_in().counts().copies <= 302);
}

TEST_CASE("gather: where the kernel cannot be had, the copy engine copies all", "[unit][capture]") {
  for (const char* words :
       {"refuses_ptx=1", "host_pointers=0", "fail_launch=1", "fail_launch=2", "fail_launch=3"}) {
    CaptureWorld world(gathering_options(8, words));
    const bool is_good = world.run(4);
    INFO(words << ": " << world.findings() << world.first_error());
    REQUIRE(is_good);
    REQUIRE(world.good() == 4);
    REQUIRE(world.failed() == 0);
    // A refused launch is the last one.
    REQUIRE(stand_in().counts().kernels <= 3);
  }
}

TEST_CASE("gather: an error at any call of the driver is reported, and no wrong byte is",
          "[unit][capture]") {
  require_reports_of_failed_calls(gathering_options(7), Second::alike);
}

TEST_CASE("gather: a kernel that fails on the GPU ends the captures, and not the trainer",
          "[unit][capture]") {
  // The table, a launch and a copy of each of the six captures at least.
  for (std::uint64_t copy = 1; copy <= 13; copy += 2) {
    require_end_of_captures(gathering_options(copy, fmt::format("fail_copy={} error=700", copy)));
  }
}

TEST_CASE("gather: a table's memory is used again, since to free it waits for the GPU",
          "[unit][capture]") {
  StandInTrainer trainer("seed=10");
  const auto pins = std::make_shared<device::MemoryPins>();
  device::GpuOptions options;
  options.gather = GpuGather::on;
  const auto gpus = device::Gpus::open(options, pins).value();
  std::byte* const first = trainer.allocate(48 * MiB);
  device::Device* const gpu = gpus->device_of(first, 0).value();
  NoListener listener;
  const auto pinned_with = [&](std::size_t count) {  // A trainer whose tensors move at each save.
    const auto run = gpu->make_run(small_tensors(first, count), listener);
    return stand_in().counts().pinned_ranges;
  };
  const std::uint64_t none = stand_in().counts().pinned_ranges;
  REQUIRE(pinned_with(100) == none + 1);
  for (int i = 0; i < 10; ++i) REQUIRE(pinned_with(90) == none + 1);
  REQUIRE(pinned_with(200) == none + 2);
  REQUIRE(pinned_with(100) == none + 2);
  // A trainer with plans of many sizes does not keep them all: each of these is larger than all
  // spares, and needs memory of its own.
  for (std::size_t count = 400; count <= 204'800; count *= 2)
    REQUIRE(pinned_with(count) < none + 12);
  pins->stop();
  REQUIRE(stand_in().violations() == std::string());
}

TEST_CASE("gather: tables of plans that are no more are freed", "[unit][capture]") {
  WorldOptions options = gathering_options(9);
  std::uint64_t pinned = 0;
  {
    CaptureWorld world(options);
    REQUIRE(world.run(2));
    pinned = stand_in().counts().pinned_ranges;
  }
  REQUIRE(pinned > 0);
  REQUIRE(stand_in().counts().pinned_ranges == 0);
  REQUIRE(stand_in().violations() == std::string());
}

}  // namespace ckpt::test
