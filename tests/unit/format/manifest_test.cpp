// Goal:   a manifest gives back every rank's entry exactly, or is refused: there is no half of one.
// Method: random checkpoints to and fro; every bit turned; then changed bodies under a new digest,
//         so that what stands behind the digest is reached as well.
#include "format/manifest.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "format/sealed_json.hpp"
#include "sample.hpp"

namespace ckpt::format {

namespace {

using test::resealed;

ManifestShard shard_for(const ShardPart& part) {
  const auto bytes = encode(part);
  const PartSeal seal = test::seal_of(bytes);
  const auto front = decode_part_front(std::span(bytes).first(seal.front_bytes));
  if (!front) FAIL(front.error().message());
  return entry_of(*front, seal);
}

Manifest sample_manifest(Random& random, std::uint32_t world_size) {
  Manifest manifest;
  manifest.writer = "libckpt 0.1.0";
  manifest.created_unix_seconds = 1'790'000'000;
  manifest.world_size = world_size;
  manifest.members = {5, 6};
  manifest.nodes = {"a", "b \"quoted\""};
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    const ShardPart part = test::sample_part(random, rank, world_size);
    manifest.job = part.record.job;
    manifest.run = part.record.run;
    manifest.at = part.record.id.at;
    manifest.shards.push_back(shard_for(part));
  }
  return manifest;
}

std::string text_of(const Manifest& manifest) {
  auto text = render(manifest);
  if (!text) FAIL(text.error().message());
  return std::move(text).value();
}

Manifest fixed_manifest() {
  Manifest manifest;
  manifest.job = "gpt2";
  ManifestShard shard;
  shard.slot_bytes = 16384;
  shard.record_digest = {1, 2};
  shard.part = {700, 600, {3, 4}};
  shard.files = {{"rank-00000.safetensors", MemberKind::safetensors, 4120, 3, ""},
                 {"rank-00000.pta", MemberKind::torch, 900, 4, "model.pt"},
                 {"rank-00000.blobs", MemberKind::raw, 10, 5, ""}};
  manifest.shards.push_back(std::move(shard));
  return manifest;
}

}  // namespace

TEST_CASE("manifest: every entry comes back", "[unit][format]") {
  Random random(51);
  for (int round = 0; round < 100; ++round) {
    const auto world_size = static_cast<std::uint32_t>(1 + random.below(4));
    const auto manifest = sample_manifest(random, world_size);
    const auto text = text_of(manifest);
    const auto again = parse_manifest(text);
    if (!again) FAIL(again.error().message());
    CHECK(again->job == manifest.job);
    CHECK(again->run == manifest.run);
    CHECK(again->nodes == manifest.nodes);
    CHECK(again->members == manifest.members);
    CHECK(again->at == manifest.at);
    CHECK(again->created_unix_seconds == manifest.created_unix_seconds);
    CHECK(again->writer == manifest.writer);
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      const auto shard = shard_of(*again, rank);
      REQUIRE(shard);
      CHECK(shard->slot_bytes == manifest.shards[rank].slot_bytes);
      CHECK(shard->record_digest == manifest.shards[rank].record_digest);
      CHECK(shard->part == manifest.shards[rank].part);
      CHECK(shard->files == manifest.shards[rank].files);
    }
    CHECK(text_of(*again) == text);
    CHECK(shard_of(*again, world_size).error().code() == Errc::not_found);
  }
}

TEST_CASE("manifest: it is JSON that others can read", "[unit][format]") {
  const auto tree = nlohmann::json::parse(text_of(fixed_manifest()));
  CHECK(tree["format"] == "libckpt-manifest");
  CHECK(tree["format_version"] == 2);
  CHECK(tree["step"] == 0);
  const auto& shard = tree["shards"][0];
  CHECK(shard["rank"] == 0);
  CHECK(shard["slot_bytes"] == 16384);
  CHECK(shard["part"]["file"] == "rank-00000.part");
  CHECK(shard["part"]["bytes"] == 700);
  CHECK(shard["part"]["front_bytes"] == 600);
  CHECK(shard["members"][0]["file"] == "rank-00000.safetensors");
  CHECK(shard["members"][0]["bytes"] == 4120);
  CHECK(shard["members"][0]["crc32"] == 3);
  CHECK_FALSE(shard["members"][0].contains("archive"));
  CHECK(shard["members"][1]["archive"] == "model.pt");
  CHECK(shard["members"][2]["kind"] == "raw");
}

TEST_CASE("manifest: a rank takes few bytes, whatever it holds", "[unit][format]") {
  Manifest manifest = fixed_manifest();
  manifest.shards[0].files.erase(manifest.shards[0].files.begin() + 1);
  const std::size_t one = text_of(manifest).size();
  manifest.world_size = 16'384;
  for (std::uint32_t rank = 1; rank < manifest.world_size; ++rank) {
    ManifestShard shard = manifest.shards[0];
    shard.rank = rank;
    shard.slot_bytes = std::uint64_t{30} << 30;
    for (StoredFile& file : shard.files) {
      file.name = member_name(rank, file.kind == MemberKind::raw ? "blobs" : "safetensors");
      file.crc = UINT32_MAX;
    }
    manifest.shards.push_back(std::move(shard));
  }
  const std::string text = text_of(manifest);
  CHECK((text.size() - one) / manifest.world_size < 400);
  CHECK(parse_manifest(text)->shards.size() == manifest.world_size);
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
      {"\"world_size\":1", "\"world_size\":2"},
      {"\"world_size\":1", "\"world_size\":0"},
      {"\"rank\":0", "\"rank\":1"},
      {"\"rank\":0", "\"rank\":0,\"rank\":0"},
      {"\"rank\":0", "\"rank\":0.0"},
      {"\"rank\":0", "\"rank\":-0"},
      {"\"bytes\":700", "\"bytes\":599"},
      {"\"bytes\":700", "\"bytes\":1073741825"},
      {"\"front_digest\":\"0", "\"front_digest\":\"00"},
      {"\"file\":\"rank-00000.part\"", "\"file\":\"rank-00001.part\""},
      {"\"file\":\"rank-00000.part\"", "\"file\":\"rank-00000.blobs\""},
      {"rank-00000.safetensors", "../../etc/passwd"},
      {"rank-00000.safetensors", "rank-00001.safetensors"},
      {"rank-00000.safetensors", "rank-00000.part"},
      {"\"kind\":\"raw\"", "\"kind\":\"pickle\""},
      {"\"kind\":\"raw\"", "\"kind\":\"torch\""},
      {"\"archive\":\"model.pt\"", "\"archive\":\"\""},
      {"\"archive\":\"model.pt\",", ""},
      {"\"crc32\":3", "\"crc32\":4294967296"},
      {"\"bytes\":4120", "\"bytes\":18446744073709551615"},
      {"\"shards\":[", "\"shards\":[],\"more\":["},
      {"libckpt-manifest", "libckpt-run"}};
  for (const auto& [from, to] : changes) {
    CAPTURE(from, to);
    const auto result = parse_manifest(resealed(good, from, to));
    REQUIRE_FALSE(result);
    CHECK(result.error().code() == Errc::corruption);
  }
  for (const auto* version : {"\"format_version\":0", "\"format_version\":6"}) {
    const auto result = parse_manifest(resealed(good, "\"format_version\":2", version));
    CHECK(result.error().code() == Errc::version_mismatch);
  }
}

TEST_CASE("manifest: a shard's files may lie in a folder", "[unit][format]") {
  Manifest manifest = fixed_manifest();
  CHECK(text_of(manifest).find("\"format_version\":2,") != std::string::npos);
  const std::string folder = GENERATE("t1.00112233aabbccdd", "t1.00112233aabbccdd/turn-2");
  manifest.shards[0].folder = folder;
  const std::string good = text_of(manifest);
  CHECK(good.find("\"format_version\":4,") != std::string::npos);
  const auto back = parse_manifest(good);
  REQUIRE((back ? "" : back.error().message()) == "");
  CHECK(back->shards[0].folder == folder);
  for (const std::string bad : {"", "..", "../up", "/root", "a/", "a//b", "a/b/c", ".hidden",
                                "a/.b", "A", "a b", "a\\u0000b"}) {
    CAPTURE(bad);
    const auto result = parse_manifest(resealed(good, folder, bad));
    REQUIRE_FALSE(result);
    CHECK(result.error().code() == Errc::corruption);
  }
  // Versions 2 and 3 have none, and version 4 one for each shard.
  for (const std::string version : {"2", "3"}) {
    const std::string older = "\"format_version\":" + version;
    CHECK_FALSE(parse_manifest(resealed(good, "\"format_version\":4", older)));
  }
  CHECK_FALSE(parse_manifest(resealed(good, "\"folder\":\"" + folder + "\",", "")));
}

TEST_CASE("manifest: random bodies under a good digest never break the reader", "[unit][format]") {
  const auto good = text_of(fixed_manifest());
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
    ++accepted;  // Names for people, white space, digits.
    const auto again = parse_manifest(text_of(*result));
    REQUIRE(again);
    CHECK(again->shards[0].files == result->shards[0].files);
  }
  CHECK(accepted > 0);
}

TEST_CASE("manifest: ranks that are missing or out of their place are refused", "[unit][format]") {
  Random random(53);
  const auto is_refused = [&](auto change) {
    auto manifest = sample_manifest(random, 3);
    change(manifest);
    const auto text = render(manifest);
    return !text && text.error().code() == Errc::invalid_argument;
  };
  CHECK_FALSE(is_refused([](Manifest&) {}));
  CHECK(is_refused([](Manifest& it) { it.shards.clear(); }));
  CHECK(is_refused([](Manifest& it) { it.shards.pop_back(); }));
  CHECK(is_refused([](Manifest& it) { it.shards.push_back(it.shards.front()); }));
  CHECK(is_refused([](Manifest& it) { it.shards[2] = it.shards[1]; }));
}

TEST_CASE("manifest: a part of another step, rank or run does not belong to it", "[unit][format]") {
  Random random(54);
  const auto manifest = sample_manifest(random, 2);
  const ShardPart part = test::sample_part(random, 1, 2);
  const auto is_refused = [&](auto change) {
    ShardRecord record = part.record;
    change(record);
    const Status status = check_belongs(manifest, 1, record);
    return !status && status.error().code() == Errc::corruption;
  };
  CHECK_FALSE(is_refused([](ShardRecord&) {}));
  CHECK(is_refused([](ShardRecord& it) { it.id.rank = 0; }));
  CHECK(is_refused([](ShardRecord& it) { it.id.at.step = Step{901}; }));
  CHECK(is_refused([](ShardRecord& it) { it.id.at.timeline += 1; }));
  CHECK(is_refused([](ShardRecord& it) { it.run.low += 1; }));
  CHECK(is_refused([](ShardRecord& it) { it.job = "another"; }));
  CHECK(is_refused([](ShardRecord& it) { it.world_size = 4; }));
}

TEST_CASE("manifest: a bomb of nesting is refused", "[unit][format]") {
  std::string deep = begin_sealed_json("libckpt-manifest", 2);
  deep += "\"writer\":" + std::string(1'000'000, '[') + ",\n";
  CHECK_FALSE(parse_manifest(seal_json(deep)));
}

}  // namespace ckpt::format
