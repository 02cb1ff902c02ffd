// Goal:   memory is pinned in pieces that the driver takes, in the background, and let go before it
//         is unmapped; a refusal is logged once and leaves nothing behind.
// Method: mappings of gigabytes that are reserved and never touched, and stand-ins with limits.
#include "device/memory_pins.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "device/cuda_batches.hpp"
#include "device/gpus.hpp"
#include "support/cuda_stand_in/stand_in.hpp"

namespace ckpt::test {

namespace {

std::uint64_t pinned_ranges() {
  return stand_in().counts().pinned_ranges;
}

// Mapping: addresses without memory behind them. Memory still pinned when it goes is a finding.
struct Mapping {
  explicit Mapping(std::size_t bytes_in) : bytes(bytes_in) {
    first = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(first != MAP_FAILED);
  }
  ~Mapping() {
    *pinned_at_end = pinned_ranges();
    ::munmap(first, bytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<std::byte> span() const { return {static_cast<std::byte*>(first), bytes}; }

  void* first = nullptr;
  std::size_t bytes;
  std::shared_ptr<std::uint64_t> pinned_at_end = std::make_shared<std::uint64_t>(~0ull);
};

// A process with a GPU in use, so that what is held is pinned.
struct PinnedProcess {
  explicit PinnedProcess(const std::string& words, const device::GpuOptions& options = {})
      : trainer(words) {
    gpus = device::Gpus::open(options, pins).value();
    REQUIRE(gpus->device_of(trainer.allocate(1), 0));
  }
  ~PinnedProcess() { pins->stop(); }
  std::shared_ptr<const void> hold(const std::shared_ptr<Mapping>& mapping) {
    return pins->hold(mapping->span(), mapping);
  }
  void settle() {
    REQUIRE(pins->wait_settled(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
  }

  StandInTrainer trainer;
  std::shared_ptr<device::MemoryPins> pins = std::make_shared<device::MemoryPins>();
  std::unique_ptr<device::Gpus> gpus;
};

std::vector<std::string>& warnings() {
  static std::vector<std::string> lines;
  return lines;
}
struct Warnings {
  Warnings() {
    warnings().clear();
    Log::set_level(LogLevel::warning);
    Log::set_sink([](LogLevel level, std::string_view line) {
      if (level == LogLevel::warning) warnings().emplace_back(line);
    });
  }
  ~Warnings() {
    Log::set_sink(nullptr);
    Log::set_level(LogLevel::error);
  }
};

}  // namespace

TEST_CASE("pins: a Slot of gigabytes is registered piece by piece", "[unit][device]") {
  // The stand-in takes no more than a GiB in one call, and other calls wait meanwhile.
  device::GpuOptions options;
  const bool is_default = GENERATE(true, false);
  if (!is_default) options.pin_piece_bytes = 1 * GiB;
  const std::uint64_t piece = is_default ? 256 * MiB : 1 * GiB;
  const int pieces = GENERATE(1, 2, 3);
  const auto [whole, more] = GENERATE(std::pair{0, 1}, std::pair{1, 0}, std::pair{0, -1});
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(pieces - 1 + whole) * piece + (more > 0   ? page_bytes
                                                                : more < 0 ? piece - page_bytes
                                                                           : std::uint64_t{0});
  PinnedProcess process(fmt::format("pin_call_max={}", 1 * GiB), options);
  const auto mapping = std::make_shared<Mapping>(bytes);
  const auto held = process.hold(mapping);
  process.settle();
  REQUIRE(process.pins->is_pinned(mapping->span()));
  REQUIRE(pinned_ranges() == static_cast<std::uint64_t>(pieces));
  REQUIRE(stand_in().counts().pin_call_bytes_max <= piece);
  process.pins->stop();
  REQUIRE(pinned_ranges() == 0);
}

TEST_CASE("pins: memory is unpinned before it is unmapped", "[unit][device]") {
  PinnedProcess process("");
  auto mapping = std::make_shared<Mapping>(3 * page_bytes);
  const auto pinned_at_end = mapping->pinned_at_end;
  std::vector<std::shared_ptr<const void>> held{process.hold(mapping)};
  mapping.reset();
  process.settle();
  REQUIRE(pinned_ranges() == 1);
  held.clear();
  process.pins->stop();
  REQUIRE(*pinned_at_end == 0);
  REQUIRE(std::string(stand_in().violations()) == "");
}

TEST_CASE("pins: a refusal in the middle leaves no piece pinned, and is logged once",
          "[unit][device]") {
  const Warnings collected;
  // Room for two pieces, and not for a third.
  PinnedProcess process(fmt::format("pin_total_max={}", 2 * GiB));
  std::vector<std::shared_ptr<Mapping>> mappings;
  std::vector<std::shared_ptr<const void>> held;
  for (int i = 0; i < 3; ++i) {
    mappings.push_back(std::make_shared<Mapping>(3 * GiB));
    held.push_back(process.hold(mappings.back()));
  }
  process.settle();
  for (const auto& mapping : mappings) REQUIRE_FALSE(process.pins->is_pinned(mapping->span()));
  REQUIRE(pinned_ranges() == 0);
  const auto told = std::count_if(warnings().begin(), warnings().end(), [](const auto& line) {
    return line.find("extra copy") != std::string::npos;
  });
  REQUIRE(told == 1);
}

TEST_CASE("pins: memory let go while it waits to be pinned is never pinned", "[unit][device]") {
  // No GPU is in use yet: nothing pins.
  const StandInTrainer trainer("");
  auto pins = std::make_shared<device::MemoryPins>();
  auto mapping = std::make_shared<Mapping>(page_bytes);
  const std::weak_ptr<Mapping> watched = mapping;
  auto held = pins->hold(mapping->span(), mapping);
  mapping.reset();
  REQUIRE_FALSE(watched.expired());
  held.reset();
  REQUIRE(watched.expired());
  REQUIRE(pinned_ranges() == 0);
}

TEST_CASE("pins: the driver is asked again to let memory go, which else stays mapped",
          "[unit][device]") {
  // The next mapping may get its address, and the driver would copy from the pages of this one.
  const auto [failures, is_unmapped] = GENERATE(std::pair{1, true}, std::pair{2, false});
  INFO(failures << " failures");
  PinnedProcess process(fmt::format("fail_unpins={}", failures));
  auto mapping = std::make_shared<Mapping>(page_bytes);
  const std::weak_ptr<Mapping> watched = mapping;
  auto held = process.hold(mapping);
  mapping.reset();
  process.settle();
  held.reset();
  process.pins->stop();
  REQUIRE(watched.expired() == is_unmapped);
  REQUIRE(pinned_ranges() == (is_unmapped ? 0 : 1));
  REQUIRE(std::string(stand_in().violations()) == "");
}

}  // namespace ckpt::test
