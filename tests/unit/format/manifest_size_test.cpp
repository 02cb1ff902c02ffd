// Goal:   how large a manifest will be is known before it is made: never too little, which would
//         let a flush begin that cannot end, and not much too much.
// Method: random checkpoints, with odd names and without, are rendered and compared; then one of
// the
//         size of a large model.
#include "format/manifest_size.hpp"

#include <catch2/catch.hpp>

#include "format/manifest.hpp"
#include "format/manifest_shard.hpp"
#include "sample.hpp"

namespace ckpt::format {

namespace {

std::uint64_t estimate(const Manifest& manifest) {
  std::uint64_t bytes = manifest_frame_bytes(manifest.job, manifest.nodes);
  for (const ShardPart& shard : manifest.shards) bytes += manifest_entry_bytes(shard.record);
  return bytes;
}

ShardPart large_part(std::uint32_t rank, std::uint32_t world_size) {
  std::vector<TensorSpec> tensors;
  for (int index = 0; index < 3000; ++index) {
    const std::string name = "optimizer.state.model.layers." + std::to_string(index) + ".exp_avg";
    tensors.push_back(test::tensor(name, DType::f32, {1024, 2500 + index % 7}));
  }
  ShardPart part;
  ShardRecord& record = part.record;
  record.job = "large";
  record.id.rank = rank;
  record.world_size = world_size;
  record.layout = test::layout_of(tensors, 0, rank);
  record.bytes = covered_bytes(record.layout, 0);
  record.chunk_bytes = 4 << 20;
  Random random(rank);
  record.chunk_crcs.resize((record.bytes + record.chunk_bytes - 1) / record.chunk_bytes);
  for (Crc32& crc : record.chunk_crcs) crc = static_cast<Crc32>(random.next());
  part.member_crcs = {static_cast<Crc32>(random.next())};
  return part;
}

}  // namespace

TEST_CASE("manifest size: an entry is never larger than it was said to be", "[unit][format]") {
  Random random(7);
  for (int round = 0; round < 300; ++round) {
    const ShardPart part = test::sample_part(random, round % 5, 5);
    std::string entry;
    append_shard(entry, part);
    CAPTURE(round, entry);
    REQUIRE(manifest_entry_bytes(part.record) >= entry.size() + 2);  // And what stands between two.
    REQUIRE(manifest_entry_bytes(part.record) < entry.size() + entry.size() / 2 + 400);
  }
}

TEST_CASE("manifest size: whole manifests, and a large one within a hundredth", "[unit][format]") {
  Random random(8);
  for (std::uint32_t world_size = 1; world_size <= 20; ++world_size) {
    std::vector<ShardPart> parts;
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      parts.push_back(test::sample_part(random, rank, world_size));
    Manifest manifest = merge(std::move(parts)).value();
    manifest.created_unix_seconds = UINT64_MAX;
    manifest.members = {UINT64_MAX, UINT64_MAX};
    for (std::uint32_t node = 0; node < world_size; ++node)
      manifest.nodes.push_back("a \"node\" with \x01 " + std::to_string(node));
    CHECK(estimate(manifest) >= render(manifest).value().size());
  }
  const Manifest large = merge({large_part(0, 2), large_part(1, 2)}).value();
  const std::uint64_t real = render(large).value().size();
  CHECK(real > 1'000'000);
  CHECK(estimate(large) >= real);
  CHECK(estimate(large) - real < real / 100);
}

}  // namespace ckpt::format
