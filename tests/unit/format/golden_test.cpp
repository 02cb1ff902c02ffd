// Goal:   what was stored yesterday is read tomorrow, and the format never changes by accident.
// Method: fixed values must encode to the bytes in tests/golden, and those must decode to them. A
//         change of the format changes libckpt/docs/format.md, a version and these files together:
//         `unit_format "[write-golden]"` writes them anew.
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "base/units.hpp"
#include "format/manifest.hpp"
#include "format/run_files.hpp"
#include "format/safetensors_header.hpp"
#include "format/safetensors_image.hpp"
#include "sample.hpp"

namespace ckpt::format {

namespace {

using Bytes = std::vector<std::byte>;

const RunId run{0x0123456789abcdefu, 0xfedcba9876543210u};

TensorSpec piece(std::string name, std::vector<std::int64_t> shape, Piece where) {
  TensorSpec spec = test::tensor(std::move(name), DType::f32, std::move(shape));
  spec.piece = std::move(where);
  return spec;
}

// A whole tensor of each form, then a box, a flat range, other orders and another copy.
Layout golden_layout() {
  return test::layout_of(
      {test::tensor("embed.weight", DType::bf16, {32, 64}), test::tensor("norm", DType::f32, {3}),
       test::tensor("count", DType::i64, {}), test::tensor("none", DType::u8, {0, 4}),
       test::tensor("mask", DType::boolean, {5}),
       test::tensor("head.weight", DType::bf16, {32, 64}, "embed.weight"),
       piece("layer.weight", {16, 64}, Piece{{64, 128}, {48, 64}, {}, {}, 0}),
       piece("layer.exp_avg", {700}, Piece{{64, 128}, {}, 7492, {}, 0}),
       piece("conv.weight", {4, 3, 3, 2}, Piece{{8, 2, 3, 3}, {4, 0, 0, 0}, {}, {0, 2, 3, 1}, 0}),
       piece("router", {8}, Piece{{8}, {0}, {}, {}, 3})},
      5000);
}

// The Slot as a trainer would fill it: header, tensors of counting bytes, blobs.
Bytes golden_slot(const ShardRecord& record) {
  Bytes slot(record.bytes);
  const auto header =
      render_header(record.layout, {"gpt2", to_hex(run), 2, Step{900}, 0, 1}).value();
  std::copy(header.begin(), header.end(), slot.begin());
  const auto fill = [&](const Extent& extent) {
    for (std::uint64_t index = 0; index < extent.bytes; ++index)
      slot[extent.offset + index] = static_cast<std::byte>(index % 251);
  };
  for (const auto& tensor : record.layout.tensors) fill(tensor.extent);
  for (const auto& blob : record.blobs) fill(blob);
  return slot;
}

ShardPart golden_part() {
  ShardPart part;
  ShardRecord& record = part.record;
  record.job = "gpt2";
  record.run = run;
  record.id = {{2, Step{900}}, 0};
  record.layout = golden_layout();
  record.model = fingerprint(record.layout);
  const std::uint64_t blobs = record.layout.members[1].extent.offset;
  record.blob_bytes = 48;
  record.blobs = {{blobs, 40}, {blobs + 40, 8}};
  record.blob_names = {"rng", "data"};
  record.bytes = covered_bytes(record.layout, record.blob_bytes);
  record.chunk_bytes = 2 * page_bytes;
  record.chunk_crcs.resize(div_ceil(record.bytes, record.chunk_bytes));
  const Bytes slot = golden_slot(record);
  const auto crc_of = [&](const Extent& extent) {
    return crc32(std::span(slot).subspan(extent.offset, extent.bytes));
  };
  for (std::size_t index = 0; index < record.chunk_crcs.size(); ++index)
    record.chunk_crcs[index] = crc_of(record.chunk(index));
  for (const Extent& member : member_extents(record)) part.member_crcs.push_back(crc_of(member));
  return part;
}

// As golden_part, but one of its blobs is state that all ranks have in common.
ShardPart golden_part_with_common() {
  ShardPart part = golden_part();
  part.record.blob_names = {"libckpt.common/args", "rng"};
  return part;
}

// As golden_part, with its first file packed.
ShardPart golden_packed_part() {
  ShardPart part = golden_part();
  const PackedShape shape{member_extents(part.record)[0], part.record.chunk_bytes};
  PackedFile file{page_bytes + shape.table_bytes(), {shape.table_bytes(), {51, 52}}};
  part.packed = {file, std::nullopt};
  return part;
}

Start golden_start() {
  Start start;
  start.start_id = 11;
  start.attempt = 2;
  start.timeline = 3;
  start.base = StepId{2, Step{900}};
  start.outcome = StartOutcome::go();
  start.reason = "newest step that every rank has";
  start.sessions = {21, 22};
  start.digests = {{31, 32}, {33, 34}};
  start.holders = {{"b", "a"}, {}};
  start.newest_seen = Step{903};
  start.source = SourceChoice::storage;
  return start;
}

NodeReport golden_report() {
  NodeReport report;
  report.job = "gpt2";
  report.run = run;
  report.node = "a";
  report.boot = 5;
  report.sequence = 6;
  report.incarnation = 7;
  report.members = {8, 9};
  report.world_size = 2;
  report.has_trainer = true;
  RankReport& rank = report.ranks.emplace_back();
  rank.session = 21;
  rank.phase = StartPhase::failed;
  rank.wanted = Step{900};
  rank.source = SourceChoice::memory;
  rank.attempt = 2;
  rank.start_id = 11;
  rank.restored_ok = true;
  rank.timeline = 2;
  rank.last_seen = Step{901};
  rank.filling = {{2, Step{902}}};
  rank.failure = "no peer";
  rank.failure_code = Errc::unavailable;
  report.holdings = {{{{2, Step{900}}, 0}, {31, 32}, 16384, 2, true, {33, 34}}};
  report.durable = {{1, Step{800}}};
  report.damaged = {{{{1, Step{800}}, 1}, Errc::corruption}};
  report.history = {{2, StepId{1, Step{800}}}};
  report.restore_counts = {{{1, Step{800}}, 1}};
  report.committed = StepId{2, Step{900}};
  report.newest_seen = StepId{2, Step{902}};
  report.start = golden_start();
  report.flush = FlushReport{true, 4, 9, {{0, 1, {31, 32}}}, {{2, 0, "disk full"}}};
  return report;
}

Decree golden_decree() {
  Decree decree;
  decree.job = "gpt2";
  decree.run = run;
  decree.coordinator = "a";
  decree.coordinator_boot = 5;
  decree.sequence = 8;
  decree.incarnation = 7;
  decree.members = {8, 9};
  decree.committed = StepId{2, Step{900}};
  decree.durable = StepId{1, Step{800}};
  decree.dropped = {{2, Step{899}}};
  decree.next_capture = Step{901};
  decree.start = golden_start();
  decree.flush = FlushOrder{4, {2, Step{900}}, "step-000000900.work", {{"a", 0}, {"b", 1}}};
  decree.history = {{2, StepId{1, Step{800}}}};
  decree.restore_counts = {{{1, Step{800}}, 1}};
  decree.live = {{"a", 41}, {"b", 42}};
  decree.degraded = "no copy of rank 1";
  decree.lost_part = "step 900 cannot be stored";
  decree.ended = true;
  decree.has_trainer = true;
  decree.waiting = "rank 1 on node b";
  return decree;
}

Manifest golden_manifest(const ShardPart& described = golden_part()) {
  const auto part = encode(described);
  const PartSeal seal = test::seal_of(part);
  const auto front = decode_part_front(std::span(part).first(seal.front_bytes)).value();
  Manifest manifest;
  manifest.writer = "libckpt 0.1.0";
  manifest.created_unix_seconds = 1'790'000'000;
  manifest.job = front.record.job;
  manifest.run = front.record.run;
  manifest.at = front.record.id.at;
  manifest.members = {8, 9};
  manifest.nodes = {"a", "b"};
  manifest.shards.push_back(entry_of(front, seal));
  return manifest;
}

Manifest golden_manifest_with_metrics() {
  Manifest manifest = golden_manifest();
  manifest.metrics = {{"eval/loss", 0.1}, {"accuracy", 1}};
  return manifest;
}

Timelines golden_timelines() {
  Timelines timelines;
  timelines.run = run;
  timelines.history = {{1, {}}, {2, StepId{1, Step{800}}}};
  timelines.restore_counts = {{{1, Step{800}}, 1}};
  return timelines;
}

Bytes golden_file(std::size_t member) {
  const auto part = golden_part();
  const auto slot = golden_slot(part.record);
  const Extent extent = member_extents(part.record)[member];
  const auto bytes = std::span(slot).subspan(extent.offset, extent.bytes);
  return {bytes.begin(), bytes.end()};
}

std::vector<Frame> golden_frames() {
  return {{0, 5000, 2}, {2 * page_bytes, 2 * page_bytes, stored_as_it_is}, {4 * page_bytes, 7, 1}};
}

struct Golden {
  std::string name;
  Bytes bytes;
};

std::vector<Golden> all_golden() {
  return {
      {"v2.shard_record", encode(golden_part().record)},
      {"v2.part", encode(golden_part())},
      {"v2.common.part", encode(golden_part_with_common())},
      {"v2.manifest.json", test::bytes_of(render(golden_manifest()).value())},
      {"v3.manifest.json", test::bytes_of(render(golden_manifest_with_metrics()).value())},
      {"v3.part", encode(golden_packed_part())},
      {"v5.manifest.json", test::bytes_of(render(golden_manifest(golden_packed_part())).value())},
      {"v1.frame_table", encode(golden_frames())},
      {"peer9.node_report", encode(golden_report())},
      {"peer9.decree", encode(golden_decree())},
      {"peer9.start", encode(golden_start())},
      {"v1.run.json", test::bytes_of(render(RunMarker{"gpt2", run}))},
      {"v1.timelines.json", test::bytes_of(render(golden_timelines()))},
      {"v2.safetensors", golden_file(0)},
      {"v2.blobs", golden_file(1)}};
}

std::string path_of(const std::string& name) {
  return std::string(CKPT_GOLDEN_DIR) + "/" + name;
}

Bytes stored(const std::string& name) {
  std::ifstream file(path_of(name), std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  INFO(name);
  REQUIRE_FALSE(text.empty());
  return test::bytes_of(text);
}

std::string stored_text(const std::string& name) {
  const Bytes bytes = stored(name);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("golden: today's encoder makes yesterday's bytes", "[unit][format]") {
  for (const auto& golden : all_golden()) {
    CAPTURE(golden.name);
    CHECK((stored(golden.name) == golden.bytes));
  }
}

TEST_CASE("golden: today's decoder reads yesterday's bytes", "[unit][format]") {
  const auto record = decode_shard_record(stored("v2.shard_record"));
  REQUIRE(record);
  CHECK(digest_of(*record) == digest_of(golden_part().record));
  CHECK(record->layout.tensors.front().name == "embed.weight");
  CHECK(decode_node_report(stored("peer9.node_report")).value() == golden_report());
  CHECK(decode_decree(stored("peer9.decree")).value() == golden_decree());
  CHECK(decode_start(stored("peer9.start")).value() == golden_start());
  CHECK(parse_run_marker(stored_text("v1.run.json")).value() == RunMarker{"gpt2", run});
  CHECK(parse_timelines(stored_text("v1.timelines.json")).value() == golden_timelines());
  const auto manifest = parse_manifest(stored_text("v2.manifest.json"));
  REQUIRE(manifest);
  const auto part = decode_shard_part(stored("v2.part"), manifest->shards[0].part);
  REQUIRE(part);
  CHECK(part->member_crcs == golden_part().member_crcs);
  const auto with_packed = parse_manifest(stored_text("v5.manifest.json"));
  REQUIRE(with_packed);
  const auto packed = decode_shard_part(stored("v3.part"), with_packed->shards[0].part);
  REQUIRE(packed);
  CHECK(packed->packed == golden_packed_part().packed);
  CHECK(files_of(*packed) == with_packed->shards[0].files);
  CHECK(with_packed->shards[0].record_digest == manifest->shards[0].record_digest);
  CHECK(digest_of(part->record) == manifest->shards[0].record_digest);
  CHECK(files_of(*part) == manifest->shards[0].files);
  const Bytes with_common = stored("v2.common.part");
  const auto common = decode_shard_part(with_common, test::seal_of(with_common));
  REQUIRE(common);
  CHECK(common->record.blob_names == std::vector<std::string>{"libckpt.common/args", "rng"});
  CHECK(common->record.blobs == part->record.blobs);
  CHECK(digest_of(common->record) == digest_of(golden_part_with_common().record));
  CHECK(digest_of(common->record) != digest_of(part->record));
  CHECK(common->member_crcs == part->member_crcs);
}

TEST_CASE("golden: checkpoints of version 1 are read", "[unit][format]") {
  const auto manifest = parse_manifest(stored_text("v1.manifest.json"));
  REQUIRE(manifest);
  const ManifestShard& shard = manifest->shards[0];
  REQUIRE(shard.embedded);
  CHECK(digest_of_version_1(shard.embedded->record) == ckpt::digest_of(stored("v1.shard_record")));
  // It lay beside the files only while they were written.
  CHECK(part_front_bytes(stored("v1.shard_part")).error().code() == Errc::version_mismatch);
  CHECK(decode_shard_record(stored("v1.shard_record")).error().code() == Errc::version_mismatch);
  CHECK(shard.embedded->member_crcs ==
        std::vector{crc32(stored("v1.safetensors")), crc32(stored("v1.blobs"))});
}

TEST_CASE("golden: the files are those that the manifest tells of", "[unit][format]") {
  const auto manifest = parse_manifest(stored_text("v2.manifest.json"));
  REQUIRE(manifest);
  CHECK(crc32(stored("v2.safetensors")) == manifest->shards[0].files[0].crc);
  CHECK(crc32(stored("v2.blobs")) == manifest->shards[0].files[1].crc);
  const auto file = stored("v2.safetensors");
  const auto image = parse_safetensors(file, file.size());
  REQUIRE(image);
  CHECK(image->header_bytes == page_bytes);
  CHECK(image->tensors.size() == 9);
}

TEST_CASE("golden: written anew", "[.][write-golden]") {
  for (const auto& golden : all_golden()) {
    std::ofstream file(path_of(golden.name), std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(golden.bytes.data()),
               static_cast<std::streamsize>(golden.bytes.size()));
    CHECK(file.good());
  }
}

}  // namespace ckpt::format
