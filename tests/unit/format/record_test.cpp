// Goal:   records, reports and decrees come back as they were, or not at all.
// Method: random ones to and fro; cut at every byte; every bit turned; then bytes changed under a
//         repaired checksum, so that the validation behind it is reached.
#include <catch2/catch.hpp>

#include "base/units.hpp"
#include "sample.hpp"

namespace ckpt::format {

namespace {

using Bytes = std::vector<std::byte>;

template <class Decode>
void require_record_damage_is_found(const Bytes& good, Decode decode) {
  REQUIRE(decode(good));
  for (std::size_t size = 0; size < good.size(); ++size) {
    const auto result = decode(std::span(good).first(size));
    REQUIRE_FALSE(result);
    REQUIRE(result.error().code() == Errc::corruption);
  }
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    REQUIRE_FALSE(decode(bad));
  }
}

// A record that is accepted under a repaired checksum must encode to those bytes.
template <class Decode>
int accepted_forgeries(const Bytes& good, Decode decode, Random& random) {
  int accepted = 0;
  for (std::size_t at = 0; at + sizeof(Crc32) < good.size(); ++at) {
    for (const auto change :
         {std::byte{1}, std::byte{0x80}, static_cast<std::byte>(1 + random.below(255))}) {
      Bytes bad = good;
      bad[at] ^= change;
      test::repair_checksum(bad);
      const auto result = decode(bad);
      if (!result) continue;
      ++accepted;
      REQUIRE(encode(*result) == bad);
    }
  }
  for (std::size_t size = sizeof(Crc32); size < good.size(); ++size) {
    Bytes bad(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    test::repair_checksum(bad);
    REQUIRE_FALSE(decode(bad));
  }
  return accepted;
}

const auto decode_record = [](std::span<const std::byte> bytes) {
  return decode_shard_record(bytes);
};
const auto decode_report = [](std::span<const std::byte> bytes) {
  return decode_node_report(bytes);
};
const auto decode_a_decree = [](std::span<const std::byte> bytes) { return decode_decree(bytes); };

}  // namespace

TEST_CASE("shard record: comes back whole", "[unit][format]") {
  Random random(21);
  for (int round = 0; round < 300; ++round) {
    const auto record = test::sample_record(random, 2, 4);
    const auto bytes = encode(record);
    const auto again = decode_shard_record(bytes);
    if (!again) FAIL(again.error().message());
    CHECK(again->job == record.job);
    CHECK(again->id == record.id);
    CHECK(again->layout == record.layout);
    CHECK(again->blobs == record.blobs);
    CHECK(again->blob_names == record.blob_names);
    CHECK(again->chunk_crcs == record.chunk_crcs);
    CHECK(encode(*again) == bytes);
    CHECK(digest_of(*again) == digest_of(record));
  }
}

TEST_CASE("agreement: reports and decrees come back whole", "[unit][format]") {
  Random random(22);
  for (int round = 0; round < 500; ++round) {
    const auto report = test::sample_report(random);
    const auto report_again = decode_node_report(encode(report));
    if (!report_again) FAIL(report_again.error().message());
    CHECK(*report_again == report);
    const auto decree = test::sample_decree(random);
    const auto decree_again = decode_decree(encode(decree));
    if (!decree_again) FAIL(decree_again.error().message());
    CHECK(*decree_again == decree);
  }
}

TEST_CASE("records: every cut and every turned bit is found", "[unit][format]") {
  Random random(23);
  require_record_damage_is_found(encode(test::sample_record(random)), decode_record);
  require_record_damage_is_found(encode(test::sample_report(random)), decode_report);
  require_record_damage_is_found(encode(test::sample_decree(random)), decode_a_decree);
}

TEST_CASE("records: a forged checksum leads to an error or to another valid record",
          "[unit][format]") {
  Random random(24);
  int accepted = 0;
  for (int round = 0; round < 5; ++round) {
    accepted += accepted_forgeries(encode(test::sample_record(random)), decode_record, random);
    accepted += accepted_forgeries(encode(test::sample_report(random)), decode_report, random);
    accepted += accepted_forgeries(encode(test::sample_decree(random)), decode_a_decree, random);
  }
  CHECK(accepted > 1000);  // The checksum was repaired: the fields themselves were reached.
}

TEST_CASE("records: one kind is not taken for another", "[unit][format]") {
  Random random(25);
  CHECK_FALSE(decode_decree(encode(test::sample_report(random))));
  CHECK_FALSE(decode_node_report(encode(test::sample_decree(random))));
  CHECK_FALSE(decode_shard_record(encode(test::sample_part(random))));
}

TEST_CASE("shard record: the claims of its fields about one another are checked",
          "[unit][format]") {
  ShardRecord good;
  good.job = "gpt2";
  good.layout = test::layout_of({test::tensor("a", DType::u8, {5})}, 6000);
  good.blob_bytes = 100;
  good.blobs = {{8192, 10}, {8202, 0}, {8210, 82}};
  good.blob_names = {"rng", "empty", "data"};
  good.bytes = 12288;
  good.chunk_bytes = 4096;
  good.chunk_crcs = {1, 2, 3};
  REQUIRE(validate(good));
  CHECK(good.chunk(2) == Extent{8192, 4096});
  CHECK(member_extents(good) == std::vector<Extent>{{0, 4101}, {8192, 100}});
  const auto is_refused = [&](auto change) {
    auto record = good;
    change(record);
    const auto result = decode_shard_record(encode(record));
    return !result && result.error().code() == Errc::corruption;
  };
  CHECK(is_refused([](ShardRecord& r) { r.id.rank = 1; }));
  CHECK(is_refused([](ShardRecord& r) { r.world_size = 0; }));
  CHECK(is_refused([](ShardRecord& r) { r.layout.members[0].file_name = "rank-00001.blobs"; }));
  CHECK(is_refused([](ShardRecord& r) { r.blob_bytes = 6001; }));
  CHECK(is_refused([](ShardRecord& r) { r.blob_bytes = 91; }));
  CHECK(is_refused([](ShardRecord& r) { r.blobs[0].offset = 8191; }));
  CHECK(is_refused([](ShardRecord& r) { r.blobs[1].offset = 8201; }));
  CHECK(is_refused([](ShardRecord& r) { r.blobs[2].bytes = UINT64_MAX; }));
  CHECK(is_refused([](ShardRecord& r) { r.blob_names[1] = "rng"; }));
  CHECK(is_refused([](ShardRecord& r) { r.blob_names[1] = ""; }));
  CHECK(is_refused([](ShardRecord& r) { r.bytes = 8192; }));
  CHECK(is_refused([](ShardRecord& r) { r.bytes = 1 << 20; }));
  CHECK(is_refused([](ShardRecord& r) { r.bytes += 1; }));
  CHECK(is_refused([](ShardRecord& r) {  // One page more than its Slot has.
    r.bytes = r.layout.slot_bytes + 4096;
    r.chunk_crcs = {1, 2, 3, 4, 5};
  }));
  CHECK(is_refused([](ShardRecord& r) { r.chunk_bytes = 0; }));
  CHECK(is_refused([](ShardRecord& r) { r.chunk_bytes = 2048; }));
  CHECK(is_refused([](ShardRecord& r) { r.chunk_bytes = 12288; }));
  CHECK(is_refused([](ShardRecord& r) { r.chunk_crcs.pop_back(); }));
  CHECK(is_refused([](ShardRecord& r) { r.chunk_crcs.push_back(4); }));
  CHECK_FALSE(is_refused([](ShardRecord& r) {
    r.bytes = r.layout.slot_bytes;
    r.chunk_crcs.push_back(4);
  }));
}

TEST_CASE("shard record: the last chunk may be short", "[unit][format]") {
  ShardRecord record;
  record.layout = test::layout_of({test::tensor("a", DType::u8, {8192})});
  record.bytes = 12288;
  record.chunk_bytes = 8192;
  record.chunk_crcs = {1, 2};
  REQUIRE(validate(record));
  CHECK(record.chunk(0) == Extent{0, 8192});
  CHECK(record.chunk(1) == Extent{8192, 4096});
}

TEST_CASE("decree: a work directory that leads elsewhere is refused", "[unit][format]") {
  Decree decree;
  decree.flush.emplace();
  for (const auto* name : {"step-000000900.work", "a/step-000000900.t1", "a"}) {
    decree.flush->work_directory = name;
    CHECK(decode_decree(encode(decree)));
  }
  for (const auto* name : {"", "/", "/a", "a/", "a//b", "..", "a/../b", ".", "a/.", "a b", "a\n",
                           "a\\b", "\xc3\xa9"}) {
    CAPTURE(name);
    decree.flush->work_directory = name;
    CHECK_FALSE(decode_decree(encode(decree)));
  }
}

TEST_CASE("start: one that contradicts itself is refused", "[unit][format]") {
  Start start;
  start.base = StepId{1, Step{4}};
  start.sessions = {21, 22};
  start.digests.resize(2);
  start.holders.resize(2);
  REQUIRE(decode_start(encode(start)));
  SECTION("no shard for some rank") {
    start.digests.pop_back();
    CHECK_FALSE(decode_start(encode(start)));
  }
  SECTION("no holders for some rank") {
    start.holders.pop_back();
    CHECK_FALSE(decode_start(encode(start)));
  }
  SECTION("it waits for copies of no step") {
    start.base.reset();
    CHECK_FALSE(decode_start(encode(start)));
    start.outcome = StartOutcome::failed(Errc::not_found);
    CHECK(decode_start(encode(start)));
  }
  SECTION("it goes and has failed") {
    start.outcome = StartOutcome::go();
    std::vector<std::byte> bytes = encode(start);
    // Behind version, kind, three numbers and the base.
    const std::size_t error_at = 2 * 2 + 3 * 8 + 1 + 2 * 8 + 1;
    bytes[error_at] = static_cast<std::byte>(Errc::io);
    test::repair_checksum(bytes);
    CHECK_FALSE(decode_start(bytes));
  }
}

}  // namespace ckpt::format
