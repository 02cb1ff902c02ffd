// Goal:   a trouble of a GPU that each layout meets again is logged once.
// Method: a driver that gives no pinned memory, and two plans one after the other: each wants a
//         table of small tensors, checks, memory for what is skipped, and checksums.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "capture/capture_world.hpp"

namespace ckpt::test {

namespace {

struct NobodyHears final : device::CopyListener {
  void run_ended(Status) override {}
};

std::vector<std::string>& lines() {
  static std::vector<std::string> logged;
  return logged;
}

std::size_t lines_with(const std::string& part) {
  return static_cast<std::size_t>(std::ranges::count_if(
      lines(), [&](const std::string& line) { return line.find(part) != std::string::npos; }));
}

}  // namespace

TEST_CASE("gpus: what each layout meets again is logged once", "[unit][capture]") {
  lines().clear();
  Log::set_level(LogLevel::info);
  Log::set_sink([](LogLevel, std::string_view line) { lines().emplace_back(line); });
  {
    StandInTrainer trainer("seed=3 pin_total_max=0");
    const auto pins = std::make_shared<device::MemoryPins>();
    device::GpuOptions options;
    options.gather = GpuGather::on;
    options.is_checked = true;
    options.skips_unchanged = true;
    const auto gpus = device::Gpus::open(options, pins).value();
    std::byte* const first = trainer.allocate(64 * KiB);
    device::Device* const gpu = gpus->device_of(first, 0).value();
    NobodyHears listener;
    for (int layout = 0; layout < 2; ++layout) {
      for (const std::size_t slots : {std::size_t{0}, std::size_t{2}}) {
        device::CopyList list;
        list.strips.push_back({0, 100, 0, 1});
        list.pieces.push_back({first, 0, 100});
        list.slots = slots;
        REQUIRE(gpu->make_run(std::move(list), listener) != nullptr);
      }
      REQUIRE(gpu->make_hash_run({{first, 100}}, listener) != nullptr);
    }
    pins->stop();
  }
  Log::set_sink(nullptr);
  Log::set_level(LogLevel::error);
  CHECK(lines_with("gpu_gather: small tensors are copied without a kernel") == 1);
  CHECK(lines_with("gpu_check: captures are not checked") == 1);
  CHECK(lines_with("skip_unchanged: unchanged tensors are copied") == 1);
  CHECK(lines_with("compare_copies: copies on this GPU are not compared") == 1);
}

}  // namespace ckpt::test
