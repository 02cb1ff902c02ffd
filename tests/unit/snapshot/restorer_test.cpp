// Goal:   no byte of a Chunk that fails its checksum reaches a tensor, and a shard is only ever
//         restored into exactly the tensors it was taken from.
// Method: a captured Slot is restored into cleared tensors; every Chunk in turn gets one flipped
//         bit; names, types and shapes are changed one at a time.
#include "snapshot/restorer.hpp"

#include <catch2/catch.hpp>
#include <thread>

#include "device/host_device.hpp"
#include "scene.hpp"
#include "snapshot/snapshotter.hpp"
#include "support/patience.hpp"

namespace ckpt::snapshot {

namespace {

using test::soon;

constexpr std::uint64_t restore_chunk = 4 * KiB;

struct RestoreRig final : CaptureListener {
  explicit RestoreRig(const std::vector<SceneTensor>& tensors)
      : scene(tensors, 100), host(threads) {
    scene.fill(11);
    Snapshotter snapshotter({scene.layout, scene.sources, scene.header, devices, restore_chunk},
                            *this);
    CaptureRequest request;
    request.step = Step{900};
    request.slot = scene.slot;
    REQUIRE(snapshotter.begin(request));
    REQUIRE(snapshotter.wait_idle(soon()));
  }
  void capture_ended(const Captured& captured) override {
    record.job = "scene";
    record.id.at.step = captured.step;
    record.layout = scene.layout;
    record.bytes = captured.bytes;
    record.chunk_bytes = restore_chunk;
    record.chunk_crcs.assign(captured.chunk_crcs.begin(), captured.chunk_crcs.end());
  }
  Status restore(std::span<const Target> targets) {
    CKPT_TRY(const RestorePlan plan, plan_restore(record, targets));
    has_written = false;
    const auto writes = [this] { has_written = true; };
    return restore_tensors(record, scene.slot, plan, {devices, threads, soon(), writes, {}});
  }
  void clear() {
    for (auto* content : scene.contents)
      std::fill(content->begin(), content->end(), std::byte{0xcc});
  }

  Scene scene;
  device::CopyThreads threads{2};
  device::HostDevice host;
  std::vector<device::Device*> devices{&host};
  format::ShardRecord record;
  bool has_written = false;
};

const std::vector<SceneTensor> model = {{"embed", 3 * restore_chunk + 5, false},
                                        {"one", 1, false},
                                        {"empty", 0, false},
                                        {"chunk", restore_chunk, false},
                                        {"chunk-1", restore_chunk - 1, true},
                                        {"chunk+1", restore_chunk + 1, true}};

}  // namespace

TEST_CASE("restorer: brings back every byte", "[unit][snapshot]") {
  RestoreRig rig(model);
  const auto expected = rig.scene.copy_of_contents();
  rig.clear();
  REQUIRE(rig.restore(rig.scene.targets()));
  REQUIRE(rig.scene.copy_of_contents() == expected);
}

TEST_CASE("restorer: the caller learns of every byte that was copied", "[unit][snapshot]") {
  RestoreRig rig(model);
  std::uint64_t bytes = 0;
  const auto plan = plan_restore(rig.record, rig.scene.targets());
  REQUIRE(plan);
  const auto copied = [&, caller = std::this_thread::get_id()](std::uint64_t more) {
    if (std::this_thread::get_id() == caller) bytes += more;
  };
  REQUIRE(restore_tensors(rig.record, rig.scene.slot, *plan,
                          {rig.devices, rig.threads, soon(), {}, copied}));
  CHECK(bytes == rig.record.bytes);
}

TEST_CASE("restorer: a flipped bit is found and its chunk stays out of the tensors",
          "[unit][snapshot]") {
  RestoreRig rig(model);
  for (std::size_t flipped = 0; flipped < rig.record.chunk_crcs.size(); ++flipped) {
    rig.clear();
    const format::Extent extent = rig.record.chunk(flipped);
    std::byte& victim = rig.scene.slot[extent.offset + (flipped * 977) % extent.bytes];
    victim ^= std::byte{0x10};
    const Status restored = rig.restore(rig.scene.targets());
    victim ^= std::byte{0x10};
    REQUIRE_FALSE(restored);
    REQUIRE(restored.error().code() == Errc::corruption);
    REQUIRE_THAT(restored.error().text(), Catch::Contains("step 900"));
    REQUIRE_THAT(restored.error().text(), Catch::Contains("chunk " + std::to_string(flipped)));
    for (std::size_t i = 0; i < rig.scene.contents.size(); ++i) {
      const format::Extent place = rig.scene.layout.tensors[i].extent;
      for (std::uint64_t k = 0; k < place.bytes; ++k) {
        if ((place.offset + k) / restore_chunk != flipped) continue;
        REQUIRE((*rig.scene.contents[i])[k] == std::byte{0xcc});
      }
    }
  }
}

TEST_CASE("restorer: names, types and shapes must be the same", "[unit][snapshot]") {
  RestoreRig rig(model);
  rig.clear();
  auto targets = rig.scene.targets();
  const std::vector<std::int64_t> other_shape = {7, 9};
  std::string expected_text;
  SECTION("a shape differs") {
    expected_text = "is U8 [7, 9] here and " + describe(targets[1].dtype, targets[1].shape);
    targets[1].shape = other_shape;
  }
  SECTION("a type differs") {
    targets[0].dtype = DType::i8;
    expected_text = "I8";
  }
  SECTION("a tensor is not registered") {
    targets.pop_back();
    expected_text = "is not registered here";
  }
  const Piece part{{20'000}, {5000}, {}, {}, 0};
  const Piece other_part{{20'000}, {0}, {}, {}, 0};
  SECTION("another part of the tensor is registered") {
    rig.record.layout.tensors[0].piece = part;
    targets[0].piece = &other_part;
    expected_text = "the part at [0] of [20000] here and the part at [5000] of [20000] there";
  }
  SECTION("a part is registered, and the whole is stored") {
    targets[0].piece = &part;
    expected_text = "the part at [5000] of [20000] here and the whole tensor there";
  }
  SECTION("the whole is registered, and a part is stored") {
    rig.record.layout.tensors[0].piece = part;
    expected_text = "the whole tensor here and the part at [5000]";
  }
  SECTION("a tensor is registered too much") {
    targets.push_back({"more", DType::f32, other_shape, nullptr, 0});
    expected_text = "\"more\"";
  }
  SECTION("a name is registered twice") {
    targets.push_back(targets[0]);
    expected_text = "twice";
  }
  const Status restored = rig.restore(targets);
  REQUIRE_FALSE(restored);
  REQUIRE(restored.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(restored.error().text(), Catch::Contains(expected_text));
  for (const auto* content : rig.scene.contents)
    for (const std::byte byte : *content) REQUIRE(byte == std::byte{0xcc});
}

TEST_CASE("restorer: another copy of the same part will do", "[unit][snapshot]") {
  RestoreRig rig({{"a", 5000, false}});
  rig.record.layout.tensors[0].piece = Piece{{20'000}, {5000}, {}, {}, 3};
  const Piece own{{20'000}, {5000}, {}, {}, 0};
  auto targets = rig.scene.targets();
  targets[0].piece = &own;
  REQUIRE(rig.restore(targets));
}

TEST_CASE("restorer: tensors that are tied only here must hold the same", "[unit][snapshot]") {
  RestoreRig rig({{"a", 5000, false}, {"b", 5000, false}, {"c", 9, false}});
  auto targets = rig.scene.targets();
  targets[1].data = targets[0].data;
  rig.clear();
  const Status differ = rig.restore(targets);
  REQUIRE_FALSE(differ);
  REQUIRE(differ.error().code() == Errc::invalid_argument);
  REQUIRE_THAT(differ.error().text(), Catch::Contains("\"a\" and \"b\" share memory"));
  REQUIRE_FALSE(rig.has_written);
  for (const auto* content : rig.scene.contents)
    for (const std::byte byte : *content) REQUIRE(byte == std::byte{0xcc});
}

TEST_CASE("restorer: tensors that reach into one another here must hold the same there",
          "[unit][snapshot]") {
  RestoreRig rig({{"a", 6000, false}, {"b", 9, false}, {"c", 700, false}});
  const auto extent = [&](std::size_t tensor) { return rig.scene.layout.tensors[tensor].extent; };
  auto targets = rig.scene.targets();
  std::vector<std::byte> behind(6699);
  targets[0].data = behind.data();
  targets[1].data = behind.data() + 100;   // Within the first one.
  targets[2].data = behind.data() + 5999;  // One byte of the first one.
  const std::span<std::byte> slot = rig.scene.slot;
  const auto make_equal = [&] {
    std::copy_n(slot.data() + extent(0).offset + 100, 9, slot.data() + extent(1).offset);
    slot[extent(2).offset] = slot[extent(0).offset + 5999];
    for (std::size_t chunk = 0; chunk < rig.record.chunk_crcs.size(); ++chunk) {
      const format::Extent at = rig.record.chunk(chunk);
      rig.record.chunk_crcs[chunk] = crc32(slot.subspan(at.offset, at.bytes));
    }
  };
  REQUIRE_THAT(rig.restore(targets).error().text(), Catch::Contains("\"a\" and \"b\" share"));
  make_equal();
  REQUIRE(rig.restore(targets));
  REQUIRE(std::equal(behind.begin(), behind.end() - 699, slot.data() + extent(0).offset));
  slot[extent(1).offset] ^= std::byte{1};  // In another Chunk than what it is compared with.
  const Status damaged = rig.restore(targets);
  REQUIRE_FALSE(damaged);
  REQUIRE(damaged.error().code() == Errc::corruption);  // Another copy may hold the same.
  REQUIRE_FALSE(rig.has_written);
}

TEST_CASE("restorer: tensors that were tied are written through each pointer", "[unit][snapshot]") {
  RestoreRig rig({{"a", 5000, false}, {"b", 3, false}});
  auto tied = rig.record.layout.tensors[0];
  tied.alias_of = tied.name;
  tied.name = "tied";
  rig.record.layout.tensors.push_back(tied);
  const auto expected = rig.scene.copy_of_contents();
  std::vector<std::byte> second(tied.extent.bytes);
  auto targets = rig.scene.targets();
  targets.push_back({"tied", tied.dtype, tied.shape, second.data(), 0});
  rig.clear();
  REQUIRE(rig.restore(targets));
  REQUIRE(second == expected[0]);
  REQUIRE(rig.scene.copy_of_contents() == expected);
}

TEST_CASE("restorer: a record that contradicts itself is corruption", "[unit][snapshot]") {
  RestoreRig rig(model);
  SECTION("a checksum is missing") {
    rig.record.chunk_crcs.pop_back();
  }
  SECTION("a tensor lies outside") {
    rig.record.layout.tensors[0].extent.offset += 1 << 20;
  }
  SECTION("a chunk has no bytes") {
    rig.record.chunk_bytes = 0;
  }
  SECTION("the slot is shorter than the record") {
    rig.scene.slot.resize(restore_chunk);
  }
  const Status restored = rig.restore(rig.scene.targets());
  REQUIRE_FALSE(restored);
  REQUIRE(restored.error().code() == Errc::corruption);
}

}  // namespace ckpt::snapshot
