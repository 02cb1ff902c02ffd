// Goal:   with skip_unchanged, captures of unguarded tensors that did not change move no bytes, and
//         yet each Slot holds what the tensors held, whatever has happened to it meanwhile.
// Method: the trainer of capture_world.hpp, which leaves tensors alone or changes some bytes of
//         them; Slots that somebody else writes into, are resized or restored into; kernels that
//         are refused, copies that arrive damaged, and each of the driver's failures.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "base/random.hpp"
#include "capture/capture_world.hpp"
#include "capture/planted_failures.hpp"
#include "device/cuda_fingerprint.hpp"

namespace ckpt::test {

namespace {

std::size_t nothing(std::size_t, std::uint64_t) {
  return 0;
}

WorldOptions skipping_options(std::uint64_t seed, const std::string& words = "") {
  WorldOptions options = options_of(seed, words);
  options.device.skips_unchanged = true;
  options.changes = nothing;
  return options;
}

std::uint64_t bytes_of_tensors(const CaptureWorld& world) {
  std::uint64_t bytes = 0;
  for (const auto& place : world.layout().tensors) bytes += place.extent.bytes;
  return bytes;
}

// Into each Slot once.
void fill_each_slot(CaptureWorld& world, std::size_t slots = 2) {
  REQUIRE(world.run(slots));
  REQUIRE(world.bytes_unchanged() == 0);
}

// One capture, of which so many bytes are not copied.
std::uint64_t unchanged_of_next(CaptureWorld& world) {
  const std::size_t failed = world.failed();
  const bool is_good = world.run(1);
  INFO(world.findings() << world.first_error());
  REQUIRE(is_good);
  REQUIRE(world.failed() == failed);
  return world.bytes_unchanged();
}

}  // namespace

TEST_CASE("skip: where nothing has changed, nothing is copied", "[unit][capture]") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    WorldOptions options = skipping_options(seed);
    options.guarded = Guarded::none;
    options.slots = 2 + seed % 2;
    if (seed % 2 == 0) options.device.gather = GpuGather::on;
    CaptureWorld world(options);
    fill_each_slot(world, options.slots);
    if (options.device.gather == GpuGather::off)
      REQUIRE(stand_in().counts().bytes_by_engine >= options.slots * bytes_of_tensors(world));
    for (std::size_t i = 0; i < 2 * options.slots; ++i) {
      const std::uint64_t by_engine = stand_in().counts().bytes_by_engine;
      INFO("seed " << seed << ", capture " << i);
      REQUIRE(unchanged_of_next(world) == bytes_of_tensors(world));
      // The sums.
      REQUIRE(stand_in().counts().bytes_by_engine - by_engine < 10'000);
    }
    REQUIRE(stand_in().counts().bytes_by_kernel == 0);
  }
}

TEST_CASE("skip: tensors that the optimizer owns are copied as ever", "[unit][capture]") {
  WorldOptions options = skipping_options(3);
  options.guarded = Guarded::all;
  CaptureWorld world(options);
  REQUIRE(world.run(6));
  REQUIRE(world.bytes_unchanged() == 0);
  REQUIRE(stand_in().counts().bytes_by_engine >= 6 * bytes_of_tensors(world));
  // The empty ones, at its load.
  REQUIRE(stand_in().counts().kernels == 2);
}

TEST_CASE("skip: of guarded tensors, those that are called frozen are left alone",
          "[unit][capture]") {
  WorldOptions options = skipping_options(4);
  options.guarded = Guarded::all;
  options.has_frozen = true;
  CaptureWorld world(options);
  fill_each_slot(world);
  std::uint64_t frozen = 0;
  for (const auto& place : world.layout().tensors)
    frozen += std::stoul(place.name.substr(1)) % 2 == 0 ? place.extent.bytes : 0;
  for (int i = 0; i < 4; ++i) REQUIRE(unchanged_of_next(world) == frozen);
}

TEST_CASE("skip: guarded tensors are read by few cores beside training, by all behind a fence",
          "[unit][capture]") {
  WorldOptions options = skipping_options(4);
  options.guarded = Guarded::all;
  options.has_frozen = true;
  options.trains_long = GENERATE(true, false);
  CaptureWorld world(options);
  if (!options.trains_long) world.trainer().hold(true);  // So that the guard finds most of it left.
  (void)world.step();
  if (!options.trains_long) world.trainer().hold(false);
  REQUIRE(world.run(1));
  REQUIRE(world.good() == 2);
  REQUIRE(stand_in().counts().blocks_max == (options.trains_long
                                                 ? device::CudaFingerprint::blocks_beside_training
                                                 : device::CudaFingerprint::blocks_of_a_whole_gpu));
}

TEST_CASE("skip: only parts with a changed byte are copied", "[unit][capture]") {
  constexpr std::uint64_t part = 64 * KiB;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    WorldOptions options = skipping_options(seed);
    options.guarded = Guarded::none;
    // Behind step 2, and seen by step 3.
    options.changes = [seed](std::size_t tensor, std::uint64_t step) -> std::size_t {
      return step == 2 && tensor == seed % 24 ? 1 : 0;
    };
    CaptureWorld world(options);
    fill_each_slot(world);
    const std::uint64_t all = bytes_of_tensors(world);
    INFO("seed " << seed);
    for (int slot = 0; slot < 2; ++slot) {
      const std::uint64_t before = stand_in().counts().bytes_by_kernel;
      const std::uint64_t unchanged = unchanged_of_next(world);
      REQUIRE(unchanged < all);
      REQUIRE(unchanged + part >= all);
      REQUIRE(stand_in().counts().bytes_by_kernel - before == all - unchanged);
    }
    REQUIRE(unchanged_of_next(world) == all);
  }
}

TEST_CASE("skip: whatever changes, each capture is that of the tensors", "[unit][capture]") {
  std::uint64_t unchanged = 0;
  for (std::uint64_t seed = 1; seed <= 32; ++seed) {
    WorldOptions options = skipping_options(seed);
    options.is_pinned = seed % 6 != 0;
    options.gpus = seed % 5 == 0 ? 2 : 1;
    options.slots = 1 + seed % 4;
    options.has_frozen = seed % 9 < 5;
    if (seed % 2 == 0) options.device.gather = GpuGather::on;
    if (seed % 3 == 0) options.words += " fifo=1";
    if (seed % 7 == 0) options.words += " connections=1";
    if (seed % 4 == 0) options.device.batch_bytes = 32 * MiB;
    options.device.is_checked = seed % 8 == 0;
    options.changes = [seed](std::size_t tensor, std::uint64_t step) -> std::size_t {
      Random random(seed * 7919 + tensor * 131 + step);
      constexpr std::size_t counts[] = {0, 0, 0, 1, 5, 1 << 20};
      return counts[random.next() % std::size(counts)];
    };
    CaptureWorld world(options);
    INFO("seed " << seed);
    for (int i = 0; i < 9; ++i) {
      const std::uint64_t of_this = unchanged_of_next(world);
      unchanged += of_this;
      // The ring's copies go through memory of the host.
      if (!options.is_pinned) REQUIRE(of_this == 0);
    }
    REQUIRE(world.good() == 9);
  }
  REQUIRE(unchanged > 5 * MiB);
}

TEST_CASE("skip: a Slot that somebody else has written into costs one capture", "[unit][capture]") {
  std::size_t tensors = 0;
  for (std::size_t index = 0; index < 24; ++index) {
    for (const bool at_end : {false, true}) {
      WorldOptions options = skipping_options(5);
      options.guarded = Guarded::none;
      CaptureWorld world(options);
      fill_each_slot(world);
      REQUIRE(unchanged_of_next(world) == bytes_of_tensors(world));
      const auto& place = world.layout().tensors[index];
      const std::uint64_t at = place.extent.offset + (at_end ? place.extent.bytes - 1 : 0);
      world.slot(world.slot_of(4))[at] ^= std::byte{0x20};
      (void)world.run(1);
      INFO(place.name << (at_end ? ", its end: " : ": ") << world.findings()
                      << world.first_error());
      // Nothing of that batch was reported as arrived.
      REQUIRE(world.findings().empty());
      REQUIRE(world.failed() == 1);
      REQUIRE_THAT(world.first_error(),
                   Catch::Contains("skip_unchanged: ") && Catch::Contains("was not copied"));
      tensors += world.first_error().find("\"" + place.name + "\"") != std::string::npos ? 1 : 0;
      // The other Slot is as it was; this one is filled anew, and known from then on.
      REQUIRE(unchanged_of_next(world) == bytes_of_tensors(world));
      REQUIRE(unchanged_of_next(world) == 0);
      REQUIRE(unchanged_of_next(world) == bytes_of_tensors(world));
      REQUIRE(unchanged_of_next(world) == bytes_of_tensors(world));
    }
  }
  REQUIRE(tensors > 4);  // Where the part has no other tensor.
}

TEST_CASE("skip: after a resize or a restore, the next capture into each Slot copies all",
          "[unit][capture]") {
  const bool is_restore = GENERATE(true, false);
  CaptureWorld world(skipping_options(6));
  fill_each_slot(world);
  REQUIRE(unchanged_of_next(world) > 0);
  for (std::size_t slot = 0; slot < 2; ++slot) std::ranges::fill(world.slot(slot), std::byte{0x77});
  if (is_restore) {
    world.snapshotter().forget_slots();
  } else {
    world.rename_slots();
  }
  // Without a look at the Slots' bytes as they were: the world has just changed them.
  REQUIRE(world.step());
  REQUIRE(world.wait_idle());
  REQUIRE(world.bytes_unchanged() == 0);
  REQUIRE(unchanged_of_next(world) == 0);
  REQUIRE(unchanged_of_next(world) > 0);
  REQUIRE(unchanged_of_next(world) > 0);
  REQUIRE(world.failed() == 0);
}

TEST_CASE("skip: a Slot without a name is never skipped", "[unit][capture]") {
  CaptureWorld world(skipping_options(6));
  world.forget_names();
  REQUIRE(world.run(6));
  REQUIRE(world.bytes_unchanged() == 0);
}

TEST_CASE("skip: where the kernels cannot be had, captures copy all", "[unit][capture]") {
  for (const char* words : {"refuses_ptx=1", "host_pointers=0", "fail_launch=1", "fail_launch=2"}) {
    CaptureWorld world(skipping_options(8, words));
    const bool is_good = world.run(6);
    INFO(words << ": " << world.findings() << world.first_error());
    REQUIRE(is_good);
    REQUIRE(world.good() == 6);
    REQUIRE(world.bytes_unchanged() == 0);
    REQUIRE(stand_in().counts().kernels <= 2);
  }
  REQUIRE(::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1) == 0);
  CaptureWorld world(skipping_options(8));
  REQUIRE(::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS") == 0);
  REQUIRE(world.run(6));
  REQUIRE(world.bytes_unchanged() == 0);
}

TEST_CASE("skip: a launch that is refused costs no capture, and nothing is skipped from then on",
          "[unit][capture]") {
  std::uint64_t launches = 0;
  {
    CaptureWorld world(skipping_options(8));
    REQUIRE(world.run(6));
    REQUIRE(world.bytes_unchanged() > 0);
    launches = stand_in().counts().kernels;
  }
  REQUIRE(launches > 20);
  for (std::uint64_t launch = 3; launch <= launches; launch += 3) {
    CaptureWorld world(skipping_options(8, fmt::format("fail_launch={}", launch)));
    const bool is_good = world.run(6);
    INFO("launch " << launch << ": " << world.findings() << world.first_error());
    REQUIRE(is_good);
    REQUIRE(world.good() == 6);
    REQUIRE(unchanged_of_next(world) == 0);
    REQUIRE(stand_in().counts().kernels == launch);
  }
}

TEST_CASE("skip: sums that arrive damaged cost a capture, and no byte", "[unit][capture]") {
  WorldOptions options = skipping_options(4);
  options.guarded = Guarded::none;
  options.slots = 1;
  std::uint64_t first = 0;
  std::uint64_t copies = 0;
  {
    CaptureWorld world(options);
    REQUIRE(world.run(1));
    first = stand_in().counts().copies;
    REQUIRE(world.run(2));
    copies = stand_in().counts().copies;
  }
  // To the host: but for the table, which goes the other way, all of them.
  std::size_t counted = 0;
  for (std::uint64_t copy = first; copy < copies; ++copy) {
    options.words = fmt::format("seed=4 corrupt_copy={}", copy);
    CaptureWorld world(options);
    (void)world.run(5);
    INFO("copy " << copy << ": " << world.findings() << world.first_error());
    REQUIRE(world.findings().empty());
    REQUIRE(world.good() + world.failed() == 5);
    REQUIRE(world.failed() == 1);
    REQUIRE(unchanged_of_next(world) == bytes_of_tensors(world));
    counted += world.first_error().find("the GPU has copied ") != std::string::npos ? 1 : 0;
  }
  REQUIRE(counted > 0);
}

TEST_CASE("skip: with gpu_check, what is copied is compared as well", "[unit][capture]") {
  WorldOptions options = skipping_options(4);
  options.device.is_checked = true;
  options.tensors = 12;  // One of each size.
  std::uint64_t copies = 0;
  {
    CaptureWorld world(options);
    REQUIRE(world.run(2));
    copies = stand_in().counts().copies;
  }
  REQUIRE(copies > 10);
  // But for the tables of both runs, all of them go to the host.
  for (std::uint64_t copy = 1; copy + 2 <= copies; ++copy) {
    options.words = fmt::format("seed=4 corrupt_copy={}", copy);
    CaptureWorld world(options);
    (void)world.run(5);
    INFO("copy " << copy << ": " << world.findings() << world.first_error());
    REQUIRE(world.findings().empty());
    REQUIRE(world.failed() == 1);
    REQUIRE(world.good() == 4);
    REQUIRE_THAT(world.first_error(), Catch::Contains("gpu_check: the copy of "));
  }
}

TEST_CASE("skip: an error at any call of the driver is reported, and no wrong byte is",
          "[unit][capture]") {
  // Fewer batches and an eager GPU, and one Slot: the second capture skips.
  WorldOptions options = skipping_options(7, "eager=1");
  options.device.batch_bytes = 512 * KiB;
  options.device.batch_copies_max = 64;
  options.slots = 1;
  require_reports_of_failed_calls(options, Second::other);
}

TEST_CASE("skip: a restore may follow a capture that could not begin", "[unit][capture]") {
  std::size_t failed = 0;
  for (std::uint64_t call = 1; call <= 20; ++call) {
    CaptureWorld world(skipping_options(7, "eager=1"));
    REQUIRE(world.run(2));
    stand_in().plant(call, 999);
    (void)world.run(1);
    failed += world.failed();
    INFO("call " << call << " at " << stand_in().failed_call() << ": " << world.first_error());
    stand_in().plant(0, 0);
    world.snapshotter().forget_slots();
    REQUIRE(world.run(1));
    REQUIRE(world.findings().empty());
    REQUIRE(world.good() + world.failed() == 4);
  }
  REQUIRE(failed > 3);
}

TEST_CASE("skip: a kernel that fails on the GPU ends the captures, and not the trainer",
          "[unit][capture]") {
  for (std::uint64_t copy = 1; copy <= 25; copy += 4) {
    WorldOptions options = skipping_options(copy, fmt::format("fail_copy={} error=700", copy));
    options.slots = 1;
    require_end_of_captures(options);
  }
}

TEST_CASE("skip: a save fits into the stream, however many batches there would be",
          "[unit][capture]") {
  WorldOptions options = skipping_options(2, "pending_max=1000");
  options.guarded = Guarded::none;
  options.tensors = 240;
  options.device.batch_bytes = 16 * KiB;
  options.device.batch_copies_max = 1024;
  CaptureWorld world(options);
  fill_each_slot(world);
  REQUIRE(unchanged_of_next(world) == bytes_of_tensors(world));
  REQUIRE(stand_in().counts().launches_blocked == 0);
}

TEST_CASE("skip: its memory is freed", "[unit][capture]") {
  std::uint64_t pinned = 0;
  {
    CaptureWorld world(skipping_options(9));
    REQUIRE(world.run(4));
    pinned = stand_in().counts().pinned_ranges;
  }
  REQUIRE(pinned > 0);
  REQUIRE(stand_in().counts().pinned_ranges == 0);
  REQUIRE(stand_in().violations() == std::string());
}

}  // namespace ckpt::test
