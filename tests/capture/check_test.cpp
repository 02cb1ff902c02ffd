// Goal:   with gpu_check, bytes that change on their way from the GPU to the Slot end the capture
//         as failed, with the tensor's name; and sound captures go on as without it.
// Method: the trainer of capture_world.hpp with the check on; each copy to the host in turn arrives
//         with one bit changed; and each of the driver's failures.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "capture/capture_world.hpp"
#include "capture/planted_failures.hpp"

namespace ckpt::test {

namespace {

WorldOptions checked_options(std::uint64_t seed, const std::string& words = "") {
  WorldOptions options = options_of(seed, words);
  options.device.is_checked = true;
  return options;
}

}  // namespace

TEST_CASE("gpu_check: sound captures are not refused, for many orders of things",
          "[unit][capture]") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    WorldOptions options = checked_options(seed);
    options.is_pinned = seed % 6 != 0;
    options.gpus = seed % 5 == 0 ? 2 : 1;
    if (seed % 2 == 0) options.device.gather = GpuGather::on;
    if (seed % 3 == 0) options.words += " fifo=1";
    if (seed % 7 == 0) options.words += " connections=1";
    // Large batches, and batches that end within what is compared at once.
    if (seed % 4 == 0) options.device.batch_bytes = 32 * MiB;
    CaptureWorld world(options);
    const bool is_good = world.run(6);
    INFO("seed " << seed << ": " << world.first_error() << world.findings());
    REQUIRE(is_good);
    REQUIRE(world.good() == 6);
    // The empty launch of each GPU, and one for each batch at least.
    REQUIRE(stand_in().counts().kernels >= static_cast<std::uint64_t>(options.gpus) + 6);
  }
}

TEST_CASE("gpu_check: a bit that changes on the way ends its capture, and no other",
          "[unit][capture]") {
  std::uint64_t copies = 0;
  {
    CaptureWorld world(checked_options(4));
    REQUIRE(world.run(1));
    copies = stand_in().counts().copies;
  }
  REQUIRE(copies > 10);
  std::size_t named = 0;
  for (std::uint64_t copy = 1; copy <= copies; ++copy) {
    CaptureWorld world(checked_options(4, fmt::format("corrupt_copy={}", copy)));
    (void)world.run(4);
    INFO("copy " << copy << ": " << world.first_error() << world.findings());
    // A batch with wrong bytes is not reported as arrived either.
    REQUIRE(world.findings().empty());
    REQUIRE(world.failed() == 1);
    REQUIRE(world.good() == 3);
    REQUIRE(world.first_error().find("gpu_check: the copy of ") != std::string::npos);
    named += world.first_error().find("tensor \"t") != std::string::npos ? 1 : 0;
  }
  REQUIRE(named == copies);
}

TEST_CASE("gpu_check: without it the same bit is in the Slot", "[unit][capture]") {
  WorldOptions options = checked_options(4, "corrupt_copy=2");
  options.device.is_checked = false;
  CaptureWorld world(options);
  (void)world.run(4);
  REQUIRE(world.findings().find("holds other bytes") != std::string::npos);
  REQUIRE(stand_in().counts().kernels == 0);
}

TEST_CASE("gpu_check: where the kernel cannot be loaded, captures go on without",
          "[unit][capture]") {
  for (const char* words : {"refuses_ptx=1", "fail_launch=1"}) {
    CaptureWorld world(checked_options(8, words));
    const bool is_good = world.run(4);
    INFO(words << ": " << world.findings() << world.first_error());
    REQUIRE(is_good);
    REQUIRE(world.good() == 4);
    REQUIRE(stand_in().counts().kernels <= 1);
  }
}

TEST_CASE("gpu_check: a refused launch ends its capture, and no other", "[unit][capture]") {
  CaptureWorld world(checked_options(8, "fail_launch=3"));
  (void)world.run(4);
  INFO(world.findings() << world.first_error());
  REQUIRE(world.findings().empty());
  REQUIRE(world.failed() == 1);
  REQUIRE(world.good() == 3);
  REQUIRE(world.first_error().find("launch the kernel for fingerprints") != std::string::npos);
}

TEST_CASE("gpu_check: an error at any call of the driver is reported, and no wrong byte is",
          "[unit][capture]") {
  // Fewer batches and an eager GPU: with the check each batch has more calls and more work.
  WorldOptions options = checked_options(7, "eager=1");
  options.device.batch_bytes = 512 * KiB;
  options.device.batch_copies_max = 64;
  require_reports_of_failed_calls(options, Second::other);
}

TEST_CASE("gpu_check: its memory is freed", "[unit][capture]") {
  std::uint64_t pinned = 0;
  {
    CaptureWorld world(checked_options(9));
    REQUIRE(world.run(2));
    pinned = stand_in().counts().pinned_ranges;
  }
  REQUIRE(pinned > 0);
  REQUIRE(stand_in().counts().pinned_ranges == 0);
  REQUIRE(stand_in().violations() == std::string());
}

}  // namespace ckpt::test
