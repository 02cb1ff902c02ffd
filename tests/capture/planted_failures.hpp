// PlantedFailures: what must hold of captures, with or without the kernel for small tensors,
// whichever call of the driver or copy on the GPU fails.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <iterator>

#include "capture/capture_world.hpp"

namespace ckpt::test {

// Whether the second capture of a world makes the calls of the first one again.
enum class Second : std::uint8_t { alike, other };

// Fails each call of the driver in turn: the failure is reported, and no wrong byte is. Each call
// has all errors, but calls that are made again have one of them.
inline void require_reports_of_failed_calls(WorldOptions options, Second second) {
  // Unknown: the call was refused. 700: an illegal address destroys the context. 2: no memory.
  static constexpr int errors[] = {999, 700, 2};
  const std::uint64_t number = GENERATE(0u, 1u, 2u);
  const int error = errors[number];
  options.tensors = 12;  // One of each size.
  std::uint64_t first_calls = 0;
  std::uint64_t calls = 0;
  {
    CaptureWorld world(options);
    REQUIRE(world.run(1));
    first_calls = stand_in().counts().calls;
    REQUIRE(world.run(1));
    calls = stand_in().counts().calls;
  }
  REQUIRE(first_calls > 50);
  REQUIRE(calls > first_calls);
  std::size_t reported = 0;
  for (std::uint64_t call = 1; call <= calls; ++call) {
    const bool is_repeated = second == Second::alike && call > first_calls;
    if (is_repeated && call % std::size(errors) != number) continue;
    CaptureWorld world(options, call, error);
    INFO("call " << call << ", error " << error << ": " << world.first_error());
    if (!world.is_ready()) {
      ++reported;
      continue;
    }
    (void)world.run(3);
    INFO("at " << stand_in().failed_call() << "\n" << world.findings());
    REQUIRE(world.findings().empty());
    REQUIRE(world.good() + world.failed() == 3);
    if (world.failed() > 0) ++reported;
    if (world.failed() > 0) REQUIRE_FALSE(world.first_error().empty());
    // A refusal does not outlast its capture.
    if (error == 999) REQUIRE(world.good() >= 1);
  }
  REQUIRE(reported > 10);
}

// The options plant an error that destroys the context, in mid-capture.
inline void require_end_of_captures(const WorldOptions& options) {
  CaptureWorld world(options);
  (void)world.run(6);
  INFO(options.words << ": " << world.first_error() << world.findings());
  REQUIRE(world.findings().empty());
  REQUIRE(world.good() + world.failed() == 6);
  REQUIRE(world.failed() >= 1);
  REQUIRE(world.first_error().find("context is lost") != std::string::npos);
}

}  // namespace ckpt::test
