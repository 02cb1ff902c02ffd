// Goal:   a manifest of version 1 is read as it was, or refused: it held every record as JSON.
// Method: the stored one; every bit of it turned; then changed bodies under a new digest.
#include "format/manifest_v1.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "format/manifest.hpp"
#include "format/sealed_json.hpp"
#include "sample.hpp"

namespace ckpt::format {

namespace {

using test::resealed;

std::string stored_manifest() {
  std::ifstream file(std::string(CKPT_GOLDEN_DIR) + "/v1.manifest.json", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  REQUIRE_FALSE(text.empty());
  return text;
}

}  // namespace

TEST_CASE("manifest v1: it has the record, and its files", "[unit][format]") {
  const auto manifest = parse_manifest(stored_manifest());
  REQUIRE(manifest);
  REQUIRE(manifest->shards.size() == 1);
  const ManifestShard& shard = manifest->shards[0];
  REQUIRE(shard.embedded);
  const ShardRecord& record = shard.embedded->record;
  CHECK(validate(record));
  CHECK(check_belongs(*manifest, 0, record));
  CHECK(shard.record_digest == digest_of(record));
  CHECK(shard.slot_bytes == record.layout.slot_bytes);
  CHECK(shard.part == PartSeal{});
  CHECK(shard.files == files_of(*shard.embedded));
  CHECK(shard.files[0].name == "rank-00000.safetensors");
  for (const TensorPlace& tensor : record.layout.tensors) CHECK_FALSE(tensor.piece);
}

TEST_CASE("manifest v1: every turned bit and every cut is found", "[unit][format]") {
  const std::string good = stored_manifest();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    CAPTURE(bit / 8);
    REQUIRE(parse_manifest(bad).error().code() == Errc::corruption);
  }
  for (std::size_t size = 0; size < good.size(); ++size)
    REQUIRE_FALSE(parse_manifest(std::string_view(good).substr(0, size)));
}

TEST_CASE("manifest v1: a new digest does not make a wrong one right", "[unit][format]") {
  const std::string good = stored_manifest();
  REQUIRE(parse_manifest(resealed(good, "\"step\":900", "\"step\":900")));
  const std::pair<std::string, std::string> changes[] = {
      {"\"step\":900", "\"step\":901"},
      {"\"job\":\"gpt2\"", "\"job\":\"gpt3\""},
      {"\"world_size\":1", "\"world_size\":2"},
      {"\"rank\":0", "\"rank\":1"},
      {"\"rank\":0", "\"rank\":0,\"rank\":0"},
      {"\"chunk_crcs\":[", "\"chunk_crcs\":[1,"},
      {"\"chunk_crcs\":[", "\"chunk_crcs\":[4294967298,"},
      {"\"dtype\":\"F32\"", "\"dtype\":\"I32\""},
      {"\"dtype\":\"F32\"", "\"dtype\":\"F4\""},
      {"\"range\":[4096,8192]", "\"range\":[4100,8196]"},
      {"\"range\":[4096,8192]", "\"range\":[4096,18446744073709551615]"},
      {"\"range\":[4096,8192]", "\"range\":[8192,4096]"},
      {"\"alias_of\":\"embed.weight\"", "\"alias_of\":\"\""},
      {"rank-00000.safetensors", "../../etc/passwd"},
      {"rank-00000.safetensors", "rank-00001.safetensors"},
      {"\"kind\":\"raw\"", "\"kind\":\"pickle\""},
      {"\"name\":\"rng\"", "\"name\":\"rn\""},
      {"\"blob_capacity\":5000", "\"blob_capacity\":0"},
      {"\"shards\":[", "\"shards\":[],\"more\":["}};
  for (const auto& [from, to] : changes) {
    CAPTURE(from, to);
    const auto result = parse_manifest(resealed(good, from, to));
    REQUIRE_FALSE(result);
    CHECK(result.error().code() == Errc::corruption);
  }
  CHECK(parse_manifest(resealed(good, "\"global_shape\":[3]", "\"global_shape\":[4]"))
            .error()
            .code() == Errc::version_mismatch);
}

TEST_CASE("manifest v1: random bodies under a good digest never give a wrong record",
          "[unit][format]") {
  const std::string good = stored_manifest();
  const Digest digest = parse_manifest(good).value().shards[0].record_digest;
  Random random(52);
  int accepted = 0;
  for (int round = 0; round < 10'000; ++round) {
    std::string bad = good;
    bad.resize(bad.rfind("\"digest\""));
    const auto changes = 1 + random.below(3);
    for (std::uint64_t change = 0; change < changes; ++change)
      bad[random.below(bad.size() - 2)] = static_cast<char>(random.below(256));
    const auto result = parse_manifest(seal_json(bad));
    if (!result) continue;
    ++accepted;  // Names for people, or white space.
    CHECK(result->shards[0].record_digest == digest);
  }
  CHECK(accepted > 0);
}

}  // namespace ckpt::format
