// Goal:   a manifest gives back every record exactly, or is refused: there is no half of one.
// Method: random checkpoints to and fro; every bit turned; then changed bodies under a new digest,
//         so that what stands behind the digest is reached as well.
#include "format/manifest.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "format/sealed_json.hpp"
#include "sample.hpp"

namespace ckpt::format {

namespace {

Manifest sample_manifest(Random& random, std::uint32_t world_size) {
  std::vector<ShardPart> parts;
  for (std::uint32_t rank = world_size; rank-- > 0;)
    parts.push_back(test::sample_part(random, rank, world_size));
  auto manifest = merge(std::move(parts));
  REQUIRE(manifest);
  manifest->created_unix_seconds = 1'790'000'000;
  manifest->members = {5, 6};
  manifest->nodes = {"a", "b \"quoted\""};
  return std::move(manifest).value();
}

std::string text_of(const Manifest& manifest) {
  auto text = render(manifest);
  if (!text) FAIL(text.error().message());
  return std::move(text).value();
}

// The text with another body and the digest that fits it.
std::string resealed(std::string text, std::string_view from, std::string_view to) {
  text.resize(text.rfind("\"digest\""));
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  return seal_json(std::move(text));
}

Manifest fixed_manifest() {
  ShardPart part;
  ShardRecord& record = part.record;
  record.job = "gpt2";
  record.layout = test::layout_of(
      {test::tensor("w", DType::f32, {2, 3}), test::tensor("tied", DType::f32, {2, 3}, "w")}, 100);
  record.model = fingerprint(record.layout);
  record.blob_bytes = 10;
  record.blobs = {{8192, 10}};
  record.blob_names = {"rng"};
  record.bytes = 12288;
  record.chunk_bytes = 8192;
  record.chunk_crcs = {1, 2};
  part.member_crcs = {3, 4};
  return merge({part}).value();
}

}  // namespace

TEST_CASE("manifest: every record comes back with its digest", "[unit][format]") {
  Random random(51);
  for (int round = 0; round < 100; ++round) {
    const auto world_size = static_cast<std::uint32_t>(1 + random.below(4));
    const auto manifest = sample_manifest(random, world_size);
    const auto text = text_of(manifest);
    const auto again = parse_manifest(text);
    if (!again) FAIL(again.error().message());
    CHECK(again->nodes == manifest.nodes);
    CHECK(again->members == manifest.members);
    CHECK(again->at == manifest.at);
    CHECK(again->created_unix_seconds == manifest.created_unix_seconds);
    CHECK(again->writer == manifest.writer);
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      const auto record = record_from(*again, rank);
      REQUIRE(record);
      CHECK(encode(*record) == encode(manifest.shards[rank].record));
      CHECK(again->shards[rank].member_crcs == manifest.shards[rank].member_crcs);
    }
    CHECK(text_of(*again) == text);
    CHECK(record_from(*again, world_size).error().code() == Errc::not_found);
  }
}

TEST_CASE("manifest: it is JSON that others can read", "[unit][format]") {
  const auto tree = nlohmann::json::parse(text_of(fixed_manifest()));
  CHECK(tree["format"] == "libckpt-manifest");
  CHECK(tree["step"] == 0);
  const auto& shard = tree["shards"][0];
  CHECK(shard["members"][0]["file"] == "rank-00000.safetensors");
  CHECK(shard["members"][0]["bytes"] == 4096 + 24);
  CHECK(shard["members"][0]["crc32"] == 3);
  CHECK(shard["members"][1]["bytes"] == 10);
  CHECK(shard["tensors"][0]["range"] == nlohmann::json({4096, 4120}));
  CHECK(shard["tensors"][1]["alias_of"] == "w");
  CHECK(shard["blobs"][0]["range"] == nlohmann::json({0, 10}));
}

TEST_CASE("manifest: every turned bit and every cut is found", "[unit][format]") {
  const auto good = text_of(fixed_manifest());
  REQUIRE(parse_manifest(good));
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    CAPTURE(bit / 8);
    const auto result = parse_manifest(bad);
    REQUIRE_FALSE(result);
    REQUIRE(result.error().code() == Errc::corruption);
  }
  for (std::size_t size = 0; size < good.size(); ++size)
    REQUIRE_FALSE(parse_manifest(std::string_view(good).substr(0, size)));
  CHECK_FALSE(parse_manifest(good + "\n"));
  CHECK_FALSE(parse_manifest("\n" + good));
}

TEST_CASE("manifest: a new digest does not make a wrong one right", "[unit][format]") {
  const auto good = text_of(fixed_manifest());
  REQUIRE(parse_manifest(resealed(good, "\"step\":0", "\"step\":0")));
  const std::pair<std::string, std::string> changes[] = {
      {"\"step\":0", "\"step\":1"},
      {"\"job\":\"gpt2\"", "\"job\":\"gpt3\""},
      {"\"world_size\":1", "\"world_size\":2"},
      {"\"rank\":0", "\"rank\":1"},
      {"\"rank\":0", "\"rank\":0,\"rank\":0"},
      {"\"rank\":0", "\"rank\":0.0"},
      {"\"rank\":0", "\"rank\":-0"},
      {"\"chunk_crcs\":[1,2]", "\"chunk_crcs\":[1,3]"},
      {"\"chunk_crcs\":[1,2]", "\"chunk_crcs\":[1]"},
      {"\"chunk_crcs\":[1,2]", "\"chunk_crcs\":[1,4294967298]"},
      {"\"dtype\":\"F32\"", "\"dtype\":\"I32\""},
      {"\"dtype\":\"F32\"", "\"dtype\":\"F4\""},
      {"\"range\":[4096,4120]", "\"range\":[4100,4124]"},
      {"\"range\":[4096,4120]", "\"range\":[4096,18446744073709551615]"},
      {"\"alias_of\":\"w\"", "\"alias_of\":\"\""},
      {"rank-00000.safetensors", "../../etc/passwd"},
      {"rank-00000.safetensors", "rank-00001.safetensors"},
      {"\"kind\":\"raw\"", "\"kind\":\"pickle\""},
      {"\"name\":\"rng\"", "\"name\":\"rn\""},
      {"\"blob_capacity\":100", "\"blob_capacity\":0"},
      {"\"slot_offset\":8192", "\"slot_offset\":12288"},
      {"\"shards\":[", "\"shards\":[],\"more\":["},
      {"libckpt-manifest", "libckpt-run"}};
  for (const auto& [from, to] : changes) {
    CAPTURE(from, to);
    const auto result = parse_manifest(resealed(good, from, to));
    REQUIRE_FALSE(result);
    CHECK(result.error().code() == Errc::corruption);
  }
  CHECK(parse_manifest(resealed(good, "\"format_version\":1", "\"format_version\":2"))
            .error()
            .code() == Errc::version_mismatch);
  CHECK(parse_manifest(resealed(good, "\"global_shape\":[2,3]", "\"global_shape\":[4,3]"))
            .error()
            .code() == Errc::version_mismatch);
}

TEST_CASE("manifest: random bodies under a good digest never give a wrong record",
          "[unit][format]") {
  const auto good = text_of(fixed_manifest());
  const auto digest = digest_of(fixed_manifest().shards[0].record);
  Random random(52);
  int accepted = 0;
  for (int round = 0; round < 10'000; ++round) {
    auto bad = good;
    bad.resize(bad.rfind("\"digest\""));
    const auto changes = 1 + random.below(3);
    for (std::uint64_t change = 0; change < changes; ++change)
      bad[random.below(bad.size() - 2)] = static_cast<char>(random.below(256));
    const auto result = parse_manifest(seal_json(bad));
    if (!result) continue;
    ++accepted;  // Names for people, or white space.
    CHECK(digest_of(result->shards[0].record) == digest);
  }
  CHECK(accepted > 0);
}

TEST_CASE("manifest: parts that do not belong together are not merged", "[unit][format]") {
  Random random(53);
  const auto parts_of = [&](std::uint32_t world_size) {
    std::vector<ShardPart> parts;
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      parts.push_back(test::sample_part(random, rank, world_size));
    return parts;
  };
  const auto is_refused = [&](auto change) {
    auto parts = parts_of(3);
    change(parts);
    const auto manifest = merge(parts);
    return !manifest && manifest.error().code() == Errc::invalid_argument;
  };
  CHECK_FALSE(is_refused([](auto&) {}));
  CHECK(is_refused([](auto& parts) { parts.clear(); }));
  CHECK(is_refused([](auto& parts) { parts.pop_back(); }));
  CHECK(is_refused([](auto& parts) { parts.push_back(parts.front()); }));
  CHECK(is_refused([](auto& parts) { parts[2] = parts[1]; }));
  CHECK(is_refused([](auto& parts) { parts[2].record.id.at.step = Step{901}; }));
  CHECK(is_refused([](auto& parts) { parts[2].record.id.at.timeline += 1; }));
  CHECK(is_refused([](auto& parts) { parts[2].record.run.low += 1; }));
  CHECK(is_refused([](auto& parts) { parts[2].record.job = "another"; }));
  CHECK(is_refused([](auto& parts) { parts[2].record.world_size = 4; }));
  CHECK(is_refused([](auto& parts) { parts[2].member_crcs.clear(); }));
}

TEST_CASE("manifest: a bomb of nesting is refused", "[unit][format]") {
  std::string deep = begin_sealed_json("libckpt-manifest");
  deep += "\"writer\":" + std::string(1'000'000, '[') + ",\n";
  CHECK_FALSE(parse_manifest(seal_json(deep)));
}

}  // namespace ckpt::format
