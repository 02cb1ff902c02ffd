// Goal:   a restore onto a GPU verifies each Chunk before it is copied, in parallel with the copies
//         of others: bytes of one that fails reach no tensor, and nothing reads the Slot any more
//         when the call returns.
// Method: a Slot of random bytes, of which every Chunk in turn gets one flipped bit, restored into
//         cleared tensors on the stand-in; the Slot is overwritten right after the answer.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/random.hpp"
#include "base/units.hpp"
#include "device/gpus.hpp"
#include "device/host_device.hpp"
#include "snapshot/restorer.hpp"
#include "support/cuda_stand_in/stand_in.hpp"
#include "support/patience.hpp"

namespace ckpt::test {

namespace {

constexpr std::uint64_t restore_chunk = 4 * KiB;
constexpr std::byte cleared{0xcc};

struct Rig {
  Rig(const std::string& words, bool is_pinned) : trainer(words) {
    std::vector<format::TensorSpec> specs;
    for (const std::size_t bytes : {3 * restore_chunk + 5, std::uint64_t{1}, restore_chunk,
                                    restore_chunk - 1, 5 * restore_chunk}) {
      format::TensorSpec spec;
      spec.name = fmt::format("t{}", specs.size());
      spec.dtype = DType::u8;
      spec.shape = {static_cast<std::int64_t>(bytes)};
      specs.push_back(spec);
    }
    record.job = "restore";
    record.id.at.step = Step{900};
    record.layout = format::make_layout(specs, 0, 0).value();
    record.bytes = record.layout.slot_bytes;
    record.chunk_bytes = restore_chunk;
    memory = std::make_shared<std::vector<std::byte>>(record.bytes + 2 * page_bytes);
    const auto first = page_bytes - reinterpret_cast<std::uintptr_t>(memory->data()) % page_bytes;
    slot = std::span(*memory).subspan(first, record.bytes);
    Random random(7);
    for (std::byte& byte : slot) byte = static_cast<std::byte>(random.next());
    for (std::uint64_t at = 0; at < record.bytes; at += restore_chunk)
      record.chunk_crcs.push_back(
          crc32(slot.subspan(at, std::min(restore_chunk, record.bytes - at))));
    for (const auto& place : record.layout.tensors) {
      std::byte* const data = trainer.allocate(place.extent.bytes);
      targets.push_back({place.name, place.dtype, place.shape, data, 1});
    }
    devices = {&host, gpus->device_of(targets.front().data, 0).value()};
    if (is_pinned) pinned = pins->hold(slot, memory);
    REQUIRE(pins->wait_settled(soon()));
  }
  ~Rig() { pins->stop(); }

  void clear() {
    for (std::size_t i = 0; i < targets.size(); ++i)
      trainer.write(targets[i].data, std::vector<std::byte>(bytes_of(i), cleared));
  }
  Status restore() {
    CKPT_TRY(const auto plan, snapshot::plan_restore(record, targets));
    return snapshot::restore_tensors(record, slot, plan, {devices, threads, soon()});
  }
  std::uint64_t bytes_of(std::size_t tensor) const {
    return record.layout.tensors[tensor].extent.bytes;
  }

  StandInTrainer trainer;
  std::shared_ptr<device::MemoryPins> pins = std::make_shared<device::MemoryPins>();
  std::unique_ptr<device::Gpus> gpus = device::Gpus::open({}, pins).value();
  device::CopyThreads threads{2};
  device::HostDevice host{threads};
  format::ShardRecord record;
  std::shared_ptr<std::vector<std::byte>> memory;
  std::span<std::byte> slot;
  std::shared_ptr<const void> pinned;
  std::vector<snapshot::Target> targets;
  std::vector<device::Device*> devices;
};

}  // namespace

TEST_CASE("restore: a flipped bit is found, and its chunk stays out of the GPU's tensors",
          "[unit][capture]") {
  const bool is_pinned = GENERATE(true, false);
  INFO((is_pinned ? "pinned" : "pageable"));
  {
    Rig rig("seed=3", is_pinned);
    const std::vector<std::byte> good(rig.slot.begin(), rig.slot.end());
    for (std::size_t flipped = 0; flipped <= rig.record.chunk_crcs.size(); ++flipped) {
      const bool is_whole = flipped == rig.record.chunk_crcs.size();
      INFO("chunk " << flipped);
      rig.clear();
      if (!is_whole) rig.slot[rig.record.chunk(flipped).offset + flipped] ^= std::byte{0x10};
      const Status restored = rig.restore();
      std::fill(rig.slot.begin(), rig.slot.end(), std::byte{0xee});
      REQUIRE(restored.has_value() == is_whole);
      if (!is_whole) {
        REQUIRE(restored.error().code() == Errc::corruption);
        REQUIRE_THAT(restored.error().text(), Catch::Contains(fmt::format("chunk {} ", flipped)));
      }
      for (std::size_t i = 0; i < rig.targets.size(); ++i) {
        const auto found = rig.trainer.read(rig.targets[i].data, rig.bytes_of(i));
        const std::uint64_t offset = rig.record.layout.tensors[i].extent.offset;
        for (std::uint64_t k = 0; k < found.size(); ++k) {
          const bool is_bad = !is_whole && (offset + k) / restore_chunk == flipped;
          const bool is_left = found[k] == cleared;
          const bool is_restored = found[k] == good[offset + k];
          if (is_bad ? !is_left : is_whole ? !is_restored : !is_left && !is_restored)
            FAIL("tensor " << i << ", byte " << k);
        }
      }
      std::copy(good.begin(), good.end(), rig.slot.begin());
    }
  }
  REQUIRE(std::string(stand_in().violations()) == "");
}

}  // namespace ckpt::test
