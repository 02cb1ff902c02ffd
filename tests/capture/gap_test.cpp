// Goal:   gpu_gap=auto takes the gap that lets the trainer's copies through without slowing ours
//         down; it measures once for each kind of machine, leaves nothing behind on the GPU, and
//         whatever fails in it costs nothing but the measurement.
// Method: figures made up for the choice, texts for the cache, and the stand-in for the measurement
//         with an error at each of its calls.
#include "device/gap_choice.hpp"

#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "device/gpus.hpp"
#include "os/small_file.hpp"
#include "support/cuda_stand_in/stand_in.hpp"
#include "support/temporary_directory.hpp"

namespace ckpt::test {

using device::cached_gap;
using device::choose_gap;
using device::GapFigures;
using device::with_gap;
using std::chrono::microseconds;

namespace {

GpuGap choice(const std::array<GapFigures, 3>& measured) {
  return choose_gap(measured);
}

// A process that uses its GPU for the first time.
struct FirstUse {
  explicit FirstUse(const std::string& words, const std::string& cache, std::uint64_t plant = 0,
                    int error = 0)
      : trainer(words), word(trainer.allocate(4)) {
    device::GpuOptions options;
    options.gap = GpuGap::automatic;
    options.gap_cache = cache;
    gpus = device::Gpus::open(options, pins).value();
    if (plant != 0) stand_in().plant(plant, error);
    const std::uint64_t before = stand_in().counts().calls;
    is_open = gpus->device_of(word, 0).has_value();
    calls = stand_in().counts().calls - before;
    stand_in().plant(0, 0);
  }
  ~FirstUse() { pins->stop(); }

  StandInTrainer trainer;
  std::byte* word;
  std::shared_ptr<device::MemoryPins> pins = std::make_shared<device::MemoryPins>();
  std::unique_ptr<device::Gpus> gpus;
  bool is_open = false;
  std::uint64_t calls = 0;
};

}  // namespace

TEST_CASE("gap: the shortest wait wins, unless it costs more than a fifth", "[unit][device]") {
  using enum GpuGap;
  const auto us = [](int count) { return std::chrono::nanoseconds(microseconds(count)); };
  REQUIRE(choice({{{none, us(1000), us(900)},
                   {write_value, us(1020), us(100)},
                   {memset, us(1199), us(60)}}}) == memset);
  REQUIRE(choice({{{none, us(1000), us(900)},
                   {write_value, us(1020), us(100)},
                   {memset, us(1201), us(60)}}}) == write_value);
  REQUIRE(choice({{{none, us(1000), us(900)},
                   {write_value, us(1300), us(100)},
                   {memset, us(4000), us(60)}}}) == none);
  // As an H200 was measured, by itself and with one queue for all streams.
  REQUIRE(choice({{{none, us(940), us(930)},
                   {GpuGap::copy, us(1000), us(180)},
                   {memset, us(990), us(170)}}}) == GpuGap::copy);
  REQUIRE(choice({{{none, us(940), us(920)},
                   {GpuGap::copy, us(1560), us(1520)},
                   {memset, us(1600), us(1580)}}}) == none);
  // The fastest is not the first.
  REQUIRE(choice({{{none, us(1300), us(10)},
                   {write_value, us(1000), us(100)},
                   {memset, us(1000), us(50)}}}) == memset);
}

TEST_CASE("gap: where it makes no difference, the cheapest is taken", "[unit][device]") {
  using enum GpuGap;
  const auto us = [](int count) { return std::chrono::nanoseconds(microseconds(count)); };
  REQUIRE(choice({{{none, us(1000), us(100)},
                   {write_value, us(1000), us(95)},
                   {memset, us(1000), us(91)}}}) == none);
  REQUIRE(choice({{{none, us(1000), us(100)},
                   {write_value, us(1000), us(89)},
                   {memset, us(1000), us(88)}}}) == write_value);
}

TEST_CASE("gap: the cache keeps a line for each kind of machine", "[unit][device]") {
  std::string text = with_gap("", "H100, driver 13000", GpuGap::copy);
  REQUIRE(text == "H100, driver 13000\tcopy\n");
  text = with_gap(text, "H100, driver 1300", GpuGap::none);  // A prefix of another key.
  REQUIRE(cached_gap(text, "H100, driver 13000") == GpuGap::copy);
  text = with_gap(text, "H100, driver 13000", GpuGap::write_value);
  REQUIRE(cached_gap(text, "H100, driver 13000") == GpuGap::write_value);
  REQUIRE(cached_gap(text, "H100, driver 1300") == GpuGap::none);
  REQUIRE_FALSE(cached_gap(text, "A100, driver 13000"));
  for (const char* damaged : {"", "\n\n", "H100", "H100\t", "H100\tauto\n", "H100\tmem", "\t\t\t"})
    REQUIRE_FALSE(cached_gap(damaged, "H100"));
  for (int i = 0; i < 40; ++i) text = with_gap(text, fmt::format("machine {}", i), GpuGap::memset);
  REQUIRE(std::ranges::count(text, '\n') == 16);
  REQUIRE(cached_gap(text, "machine 39") == GpuGap::memset);
  REQUIRE_FALSE(cached_gap(text, "machine 0"));
}

TEST_CASE("gap: it is measured once, and leaves nothing behind", "[unit][capture]") {
  const TemporaryDirectory directory;
  const std::string cache = directory.path() / "gpu-gaps";
  StandInCounts usual;
  {
    const FirstUse first("seed=1", cache);
    REQUIRE(first.is_open);
    usual = stand_in().counts();
    REQUIRE(usual.copies > 0);
    REQUIRE(usual.words_written > 0);
    REQUIRE(usual.pinned_ranges == 0);
  }
  REQUIRE(stand_in().violations() == std::string());
  const std::string text = os::read_file(cache, 4096).value();
  REQUIRE(text.starts_with("stand-in 0, driver 13000, connections default\t"));
  {
    const FirstUse next("seed=2", cache);
    REQUIRE(next.is_open);
    const StandInCounts counts = stand_in().counts();
    REQUIRE(counts.copies == 0);
    REQUIRE(counts.live_streams == usual.live_streams);
    REQUIRE(counts.live_events == usual.live_events);
  }
  // With another number of queues of the hardware it is another machine.
  REQUIRE(::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1) == 0);
  const FirstUse other("seed=3 connections=1", cache);
  ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  REQUIRE(stand_in().counts().copies > 0);
  REQUIRE(os::read_file(cache, 4096).value().find("connections 1\t") != std::string::npos);
}

TEST_CASE("gap: one that the driver does not have is left out", "[unit][capture]") {
  const TemporaryDirectory directory;
  const std::string cache = directory.path() / "gpu-gaps";
  const FirstUse first("seed=5 refuses_values=1", cache);
  REQUIRE(first.is_open);
  REQUIRE(stand_in().violations() == std::string());
  // The others are measured, and one of them is chosen.
  const std::string text = os::read_file(cache, 4096).value();
  REQUIRE(text.starts_with("stand-in 0, driver 13000, connections default\t"));
  REQUIRE(text.find("write_value") == std::string::npos);
}

TEST_CASE("gap: an error at any call costs the measurement, and not the captures",
          "[unit][capture]") {
  const TemporaryDirectory directory;
  const std::string cache = directory.path() / "gpu-gaps";
  std::uint64_t calls = 0;
  {
    const FirstUse sound("seed=4", "");
    REQUIRE(sound.is_open);
    calls = sound.calls;
  }
  std::size_t unmeasured = 0;
  // The first calls open the GPU and prepare; then each gap is like the other.
  for (std::uint64_t call = 1; call <= calls; call += call < 60 ? 1 : calls / 12) {
    INFO("call " << call);
    {
      const FirstUse use("seed=4", cache, call, 999);
      INFO("at " << stand_in().failed_call());
      // A GPU that opens has a gap; one that does not is refused for another reason.
      const bool is_kept = os::file_bytes(cache) > 0;
      // All queued work has ended, and its memory is given back, unless that was refused.
      if (stand_in().failed_call() != std::string("free_host"))
        REQUIRE(stand_in().counts().pinned_ranges == 0);
      if (use.is_open && !is_kept) ++unmeasured;
      os::remove_file(cache);
    }
    REQUIRE(stand_in().violations() == std::string());
  }
  REQUIRE(unmeasured > 10);
}

}  // namespace ckpt::test
