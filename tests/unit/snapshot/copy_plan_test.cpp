// Goal:   every byte of the Slot below the blobs is written by exactly one strip of at most one
//         Chunk, and unguarded strips never wait for guarded ones.
// Method: plans of sizes around the Chunk are replayed by hand into a byte map; checksums of strips
//         are combined and compared with those of the bytes.
#include "snapshot/copy_plan.hpp"

#include <catch2/catch.hpp>

#include "scene.hpp"

namespace ckpt::snapshot {

namespace {

constexpr std::uint64_t plan_chunk = 8 * KiB;

void require_covers_once(const Scene& scene, const CopyPlan& plan) {
  std::vector<int> writes(plan.bytes, 0);
  for (const PlannedRun& run : plan.runs) {
    REQUIRE_FALSE(run.list.strips.empty());
    std::size_t next_piece = 0;
    for (const device::Strip& strip : run.list.strips) {
      REQUIRE(strip.first_piece == next_piece);
      next_piece += strip.piece_count;
      REQUIRE(strip.slot_offset / plan_chunk == (strip.slot_offset + strip.bytes - 1) / plan_chunk);
      std::uint64_t offset = strip.slot_offset;
      for (std::size_t i = 0; i < strip.piece_count; ++i) {
        const device::CopyPiece& piece = run.list.pieces[strip.first_piece + i];
        REQUIRE(piece.slot_offset == offset);
        offset += piece.bytes;
        for (std::uint64_t k = 0; k < piece.bytes; ++k) ++writes[piece.slot_offset + k];
      }
      REQUIRE(offset == strip.slot_offset + strip.bytes);
    }
    REQUIRE(next_piece == run.list.pieces.size());
  }
  REQUIRE(std::count(writes.begin(), writes.end(), 1) ==
          static_cast<std::ptrdiff_t>(writes.size()));
  REQUIRE(plan.bytes == format::covered_bytes(scene.layout, 0));
}

void require_in_order(const CopyPlan& plan) {
  std::uint64_t offset = 0;
  for (const StripPlace& place : plan.in_order) {
    const device::Strip& strip = plan.runs[place.run].list.strips[place.strip];
    REQUIRE(strip.slot_offset == offset);
    REQUIRE(strip.bytes == place.bytes);
    offset += strip.bytes;
  }
  REQUIRE(offset == plan.bytes);
}

}  // namespace

TEST_CASE("copy plan: every byte is written once, cut at the chunks", "[unit][snapshot]") {
  const std::uint64_t bytes =
      GENERATE(0u, 1u, plan_chunk - 1, plan_chunk, plan_chunk + 1, 5 * plan_chunk + 3);
  const std::uint64_t blob_capacity = GENERATE(0u, 100u);
  const Scene scene({{"a", bytes, true}, {"b", 3, false}, {"c", bytes, true}, {"d", 0, true}},
                    blob_capacity);
  const CopyPlan plan = plan_copies(scene.layout, scene.sources, scene.header, plan_chunk);
  require_covers_once(scene, plan);
  require_in_order(plan);
}

TEST_CASE("copy plan: unguarded sources come first, in runs of their own", "[unit][snapshot]") {
  Scene scene({{"a", 10, true}, {"b", 20, false}, {"c", 30, true}});
  for (std::size_t i = 0; i < scene.sources.size(); ++i)
    if (scene.layout.tensors[i].name == "c") scene.sources[i].device = 1;
  const CopyPlan plan = plan_copies(scene.layout, scene.sources, scene.header, plan_chunk);
  REQUIRE(plan.runs.size() == 3);
  REQUIRE_FALSE(plan.runs[0].is_guarded);
  REQUIRE(plan.runs[1].is_guarded);
  REQUIRE(plan.runs[2].is_guarded);
  require_covers_once(scene, plan);
  require_in_order(plan);
}

TEST_CASE("copy plan: frozen sources have runs of their own among guarded ones, and only there",
          "[unit][snapshot]") {
  const bool is_c_frozen = GENERATE(true, false);
  Scene scene({{"a", 10, true}, {"b", 20, false}, {"c", 30, true}, {"d", 40, false}});
  for (std::size_t i = 0; i < scene.sources.size(); ++i) {
    const std::string& name = scene.layout.tensors[i].name;
    scene.sources[i].is_frozen = name == (is_c_frozen ? "c" : "a") || name == "d";
  }
  const CopyPlan plan = plan_copies(scene.layout, scene.sources, scene.header, plan_chunk);
  REQUIRE(plan.runs.size() == 3);
  std::size_t frozen_runs = 0;
  for (const PlannedRun& run : plan.runs) {
    frozen_runs += run.is_frozen ? 1 : 0;
    REQUIRE((run.is_guarded || !run.is_frozen));
  }
  REQUIRE(frozen_runs == 1);
  // Whatever their places in the Slot: what is trained does not wait for them.
  REQUIRE(plan.runs.back().is_frozen);
  require_covers_once(scene, plan);
  require_in_order(plan);
}

TEST_CASE("copy plan: ten thousand small tensors make few strips", "[unit][snapshot]") {
  std::vector<SceneTensor> tensors;
  for (int i = 0; i < 10'000; ++i) tensors.push_back({"t" + std::to_string(i), 4096, true});
  const Scene scene(tensors);
  const CopyPlan plan = plan_copies(scene.layout, scene.sources, scene.header, default_chunk_bytes);
  REQUIRE(plan.in_order.size() <= div_ceil(scene.layout.slot_bytes, default_chunk_bytes) + 1);
}

TEST_CASE("copy plan: an alias is copied once", "[unit][snapshot]") {
  const std::vector<format::TensorSpec> specs = {{"a", DType::u8, {5000}, ""},
                                                 {"tied", DType::u8, {5000}, "a"}};
  const format::Layout layout = format::make_layout(specs, 0, 0).value();
  const std::vector<std::byte> data(5000);
  const std::vector<Source> sources = {{data.data(), 0, false}, {data.data(), 0, false}};
  const std::vector<std::byte> header(layout.members[0].header_bytes);
  const CopyPlan plan = plan_copies(layout, sources, header, plan_chunk);
  REQUIRE(plan.bytes == layout.slot_bytes);
  std::uint64_t copied = 0;
  for (const auto& piece : plan.runs[0].list.pieces)
    if (piece.source >= data.data() && piece.source < data.data() + data.size())
      copied += piece.bytes;
  REQUIRE(copied == 5000);
}

TEST_CASE("chunk checksums: neighbours combine to what the chunk has", "[unit][snapshot]") {
  Random random(5);
  std::vector<std::byte> bytes(3 * plan_chunk + 17);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  ChunkChecksums checksums(plan_chunk);
  for (int round = 0; round < 2; ++round) {
    checksums.clear();
    for (std::uint64_t offset = 0; offset < bytes.size();) {
      const std::uint64_t room = std::min(plan_chunk - offset % plan_chunk, bytes.size() - offset);
      const std::uint64_t part = std::min<std::uint64_t>(room, 1 + random.below(plan_chunk));
      checksums.add(crc32(std::span(bytes).subspan(offset, part)), part);
      offset += part;
    }
    REQUIRE(checksums.crcs().size() == 4);
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint64_t size = std::min<std::uint64_t>(plan_chunk, bytes.size() - i * plan_chunk);
      REQUIRE(checksums.crcs()[i] == crc32(std::span(bytes).subspan(i * plan_chunk, size)));
    }
  }
}

}  // namespace ckpt::snapshot
