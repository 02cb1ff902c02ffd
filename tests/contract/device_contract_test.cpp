// Goal:   whatever lies behind the Device seam, a capture shows the sources as they were when it
//         was started, and an update after the fence never reaches it.
// Method: the same checks against each Device: patterns copied, then overwritten right after the
//         fence; checksums compared with those of the bytes that arrived.
#include "contract/device_contract.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include "base/units.hpp"
#include "device/host_device.hpp"
#include "support/patience.hpp"
#include "support/random_bytes.hpp"

namespace ckpt::test {

namespace {

using device::CopyList;
using device::CopyRun;

class CountingListener final : public device::CopyListener {
 public:
  void run_ended(Status status) override {
    if (!status) ++failures;
    ++endings;
  }
  std::atomic<int> endings{0};
  std::atomic<int> failures{0};
};

// Sizes around what implementations split at, two pieces to a strip, with zeros between them.
struct DeviceScene {
  explicit DeviceScene(DeviceUnderTest& subject, std::size_t scale = 1) {
    const std::vector<std::size_t> sizes = {1,        4095,         4096,        4097,
                                            16 * KiB, 64 * KiB + 1, 1 * MiB + 7, scale * MiB};
    std::uint64_t offset = 64;
    for (const std::size_t bytes : sizes) {
      sources.push_back(subject.allocate(bytes));
      contents.push_back(random_bytes(bytes, bytes));
      subject.write(sources.back(), contents.back());
      list.strips.push_back({offset, bytes + 3, list.pieces.size(), 2});
      list.pieces.push_back({sources.back(), offset, bytes});
      list.pieces.push_back({nullptr, offset + bytes, 3});
      offset += bytes + 3;
    }
    slot_memory = std::make_shared<std::vector<std::byte>>(offset + 64, std::byte{0xee});
    slot = *slot_memory;
    pin = subject.pin(slot_memory);
  }

  void change_sources(DeviceUnderTest& subject) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      contents[i] = random_bytes(contents[i].size(), 1000 + i);
      subject.write(sources[i], contents[i]);
    }
  }

  CopyList list;
  std::vector<std::byte*> sources;
  std::vector<std::vector<std::byte>> contents;
  std::shared_ptr<std::vector<std::byte>> slot_memory;
  std::span<std::byte> slot;
  std::shared_ptr<const void> pin;
};

void require_slot_holds(const DeviceScene& scene,
                        const std::vector<std::vector<std::byte>>& contents) {
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const device::CopyPiece& piece = scene.list.pieces[2 * i];
    const auto found = scene.slot.subspan(piece.slot_offset, piece.bytes);
    INFO("source " << i);
    REQUIRE(std::memcmp(found.data(), contents[i].data(), found.size()) == 0);
    for (std::size_t k = 0; k < 3; ++k)
      REQUIRE(scene.slot[piece.slot_offset + piece.bytes + k] == std::byte{0});
  }
  // Nothing around it was touched.
  REQUIRE(scene.slot[63] == std::byte{0xee});
  REQUIRE(scene.slot[scene.slot.size() - 64] == std::byte{0xee});
}

void require_checksums_match(DeviceUnderTest& subject, const DeviceScene& scene,
                             const CopyRun& run) {
  if (!subject.device().has_checksums()) {
    REQUIRE(run.checksums().empty());
    return;
  }
  REQUIRE(run.checksums().size() == scene.list.strips.size());
  for (std::size_t i = 0; i < scene.list.strips.size(); ++i) {
    const device::Strip& strip = scene.list.strips[i];
    REQUIRE(run.checksums()[i] == crc32(scene.slot.subspan(strip.slot_offset, strip.bytes)));
  }
}

}  // namespace

void check_a_run_copies_every_piece(DeviceUnderTest& subject) {
  DeviceScene scene(subject);
  CountingListener listener;
  const auto run = subject.device().make_run(scene.list, listener);
  for (const bool with_checksums : {true, false}) {
    std::fill(scene.slot.begin(), scene.slot.end(), std::byte{0xee});
    REQUIRE(run->start({scene.slot, subject.stream(), with_checksums}));
    REQUIRE(run->wait_idle(soon()));
    require_slot_holds(scene, scene.contents);
    if (with_checksums) {
      require_checksums_match(subject, scene, *run);
    } else {
      REQUIRE(run->checksums().empty());
    }
  }
  REQUIRE(listener.endings == 2);
  REQUIRE(listener.failures == 0);
}

void check_a_run_copies_what_the_sources_hold_at_its_start(DeviceUnderTest& subject) {
  DeviceScene scene(subject);
  CountingListener listener;
  const auto run = subject.device().make_run(scene.list, listener);
  REQUIRE(run->start({scene.slot, subject.stream(), true}));
  REQUIRE(run->fence(subject.stream()));
  REQUIRE(run->wait_idle(soon()));
  scene.change_sources(subject);
  REQUIRE(run->start({scene.slot, subject.stream(), true}));
  REQUIRE(run->fence(subject.stream()));
  REQUIRE(run->wait_idle(soon()));
  require_slot_holds(scene, scene.contents);
  require_checksums_match(subject, scene, *run);
}

void check_a_fence_frees_the_sources(DeviceUnderTest& subject) {
  DeviceScene scene(subject, subject.large_mib());
  CountingListener listener;
  const auto run = subject.device().make_run(scene.list, listener);
  for (int round = 0; round < 5; ++round) {
    REQUIRE(run->start({scene.slot, subject.stream(), true}));
    REQUIRE(run->fence(subject.stream()));
    const auto captured = scene.contents;
    scene.change_sources(subject);
    REQUIRE(run->wait_idle(soon()));
    require_slot_holds(scene, captured);
    require_checksums_match(subject, scene, *run);
  }
  REQUIRE(listener.endings == 5);
}

void check_a_fence_of_an_idle_run_is_nothing(DeviceUnderTest& subject) {
  DeviceScene scene(subject);
  CountingListener listener;
  const auto run = subject.device().make_run(scene.list, listener);
  REQUIRE(run->fence(subject.stream()));
  REQUIRE(run->wait_idle(soon()));
  REQUIRE(listener.endings == 0);
  REQUIRE(scene.slot[100] == std::byte{0xee});
}

void check_an_empty_run_ends(DeviceUnderTest& subject) {
  CountingListener listener;
  const auto run = subject.device().make_run({}, listener);
  REQUIRE(run->start({{}, subject.stream(), true}));
  REQUIRE(run->fence(subject.stream()));
  REQUIRE(run->wait_idle(soon()));
  REQUIRE(listener.endings == 1);
}

void check_several_runs_go_on_at_once(DeviceUnderTest& subject) {
  constexpr int run_count = 12;  // More than are queued at a time.
  std::vector<std::unique_ptr<DeviceScene>> scenes;
  std::vector<std::unique_ptr<CopyRun>> runs;
  CountingListener listener;
  for (int i = 0; i < run_count; ++i) {
    scenes.push_back(std::make_unique<DeviceScene>(subject));
    runs.push_back(subject.device().make_run(scenes.back()->list, listener));
  }
  for (int i = 0; i < run_count; ++i)
    REQUIRE(runs[i]->start({scenes[i]->slot, subject.stream(), true}));
  for (int i = 0; i < run_count; ++i) REQUIRE(runs[i]->fence(subject.stream()));
  for (int i = 0; i < run_count; ++i) {
    REQUIRE(runs[i]->wait_idle(soon()));
    require_slot_holds(*scenes[i], scenes[i]->contents);
  }
  REQUIRE(listener.endings == run_count);
}

void check_a_run_may_be_destroyed_while_it_copies(DeviceUnderTest& subject) {
  for (int round = 0; round < 20; ++round) {
    DeviceScene scene(subject, 4);
    CountingListener listener;
    {
      const auto run = subject.device().make_run(scene.list, listener);
      REQUIRE(run->start({scene.slot, subject.stream(), true}));
    }
    REQUIRE(listener.endings == 1);
  }
}

void check_copies_in_are_there_when_settled(DeviceUnderTest& subject) {
  std::vector<std::byte*> targets;
  const std::vector<std::size_t> sizes = {1, 4096, 1 * MiB + 1, 4 * MiB};
  std::vector<std::vector<std::byte>> sources;
  for (const std::size_t bytes : sizes) {
    targets.push_back(subject.allocate(bytes));
    sources.push_back(random_bytes(bytes, 7 + bytes));
    REQUIRE(subject.device().copy_in(targets.back(), sources.back()));
  }
  REQUIRE(subject.device().copy_in(nullptr, {}));
  REQUIRE(subject.device().settle(soon()));
  for (std::size_t i = 0; i < sizes.size(); ++i)
    REQUIRE(subject.read(targets[i], sizes[i]) == sources[i]);
}

namespace {

class HostUnderTest final : public DeviceUnderTest {
 public:
  explicit HostUnderTest(std::uint32_t threads) : threads_(threads), device_(threads_) {}

  device::Device& device() override { return device_; }
  Stream stream() override { return {}; }
  std::shared_ptr<const void> pin(const std::shared_ptr<std::vector<std::byte>>&) override {
    return nullptr;
  }
  std::byte* allocate(std::size_t bytes) override {
    memory_.push_back(std::make_unique<std::byte[]>(bytes));
    return memory_.back().get();
  }
  void write(std::byte* target, std::span<const std::byte> source) override {
    std::copy(source.begin(), source.end(), target);
  }
  std::vector<std::byte> read(const std::byte* source, std::size_t bytes) override {
    return {source, source + bytes};
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  device::CopyThreads threads_;
  device::HostDevice device_;
};

}  // namespace

TEST_CASE("device contract: the host", "[contract][device]") {
  HostUnderTest subject(GENERATE(1u, 2u, 5u));
  SECTION("copies every piece") {
    check_a_run_copies_every_piece(subject);
  }
  SECTION("copies what is there at the start") {
    check_a_run_copies_what_the_sources_hold_at_its_start(subject);
  }
  SECTION("a fence frees the sources") {
    check_a_fence_frees_the_sources(subject);
  }
  SECTION("a fence of an idle run is nothing") {
    check_a_fence_of_an_idle_run_is_nothing(subject);
  }
  SECTION("an empty run ends") {
    check_an_empty_run_ends(subject);
  }
  SECTION("several runs at once") {
    check_several_runs_go_on_at_once(subject);
  }
  SECTION("destroyed while copying") {
    check_a_run_may_be_destroyed_while_it_copies(subject);
  }
  SECTION("copies in") {
    check_copies_in_are_there_when_settled(subject);
  }
}

}  // namespace ckpt::test
