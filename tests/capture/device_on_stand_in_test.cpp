// Goal:   a GPU behind the Device seam does what the seam promises, whatever the driver's version.
// Method: the contract of all Devices, on the stand-in, with pinned and with pageable Slots.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "contract/device_contract.hpp"
#include "device/gpus.hpp"
#include "support/cuda_stand_in/stand_in.hpp"

namespace ckpt::test {

namespace {

class GpuUnderTest final : public DeviceUnderTest {
 public:
  GpuUnderTest(const std::string& words, bool is_pinned)
      : is_pinned_(is_pinned), trainer_(words), pins_(std::make_shared<device::MemoryPins>()) {
    gpus_ = device::Gpus::open({0, 256 * KiB, 16}, pins_).value();
    device_ = gpus_->device_of(trainer_.allocate(1), 0).value();
  }
  ~GpuUnderTest() override {
    pins_->stop();
    gpus_.reset();
  }

  device::Device& device() override { return *device_; }
  Stream stream() override { return trainer_.stream(); }
  std::size_t large_mib() const override { return 2; }
  std::shared_ptr<const void> pin(const std::shared_ptr<std::vector<std::byte>>& slot) override {
    if (!is_pinned_) return nullptr;
    auto held = pins_->hold(*slot, slot);
    REQUIRE(pins_->wait_settled(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
    return held;
  }
  std::byte* allocate(std::size_t bytes) override { return trainer_.allocate(bytes); }
  void write(std::byte* target, std::span<const std::byte> source) override {
    trainer_.write(target, {source.begin(), source.end()});
  }
  std::vector<std::byte> read(const std::byte* source, std::size_t bytes) override {
    return trainer_.read(source, bytes);
  }

 private:
  bool is_pinned_;
  StandInTrainer trainer_;
  std::shared_ptr<device::MemoryPins> pins_;
  std::unique_ptr<device::Gpus> gpus_;
  device::Device* device_ = nullptr;
};

}  // namespace

TEST_CASE("device contract: a GPU, on the stand-in driver", "[unit][device]") {
  const int version = GENERATE(12000, 12080, 13000);
  const bool is_pinned = GENERATE(true, false);
  const int eager = GENERATE(0, 1);
  INFO("version " << version << (is_pinned ? ", pinned" : ", by the ring") << ", eager " << eager);
  {
    GpuUnderTest subject(fmt::format("seed=3 version={} eager={}", version, eager), is_pinned);
    check_a_run_copies_every_piece(subject);
    check_a_run_copies_what_the_sources_hold_at_its_start(subject);
    check_a_fence_frees_the_sources(subject);
    check_a_fence_of_an_idle_run_is_nothing(subject);
    check_an_empty_run_ends(subject);
    check_several_runs_go_on_at_once(subject);
    check_copies_in_are_there_when_settled(subject);
  }
  REQUIRE(std::string(stand_in().violations()) == "");
}

TEST_CASE("device contract: a GPU's run is destroyed while it copies", "[unit][device]") {
  {
    GpuUnderTest subject("seed=4", true);
    check_a_run_may_be_destroyed_while_it_copies(subject);
  }
  REQUIRE(std::string(stand_in().violations()) == "");
  const StandInCounts counts = stand_in().counts();
  REQUIRE(counts.live_streams == 0);
  REQUIRE(counts.live_events == 0);
  REQUIRE(counts.retained_contexts == 0);
  REQUIRE(counts.pinned_ranges == 0);
}

}  // namespace ckpt::test
