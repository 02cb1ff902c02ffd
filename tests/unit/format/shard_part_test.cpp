// Goal:   a part comes back exactly, or not at all; and a reader of one name needs its front and
// one
//         block, and believes neither without its digest.
// Method: random parts to and fro; every bit turned and every cut under the manifest's seal; then
//         other bytes under seals that fit them; a large part, in which each name is looked up.
#include "format/shard_part.hpp"

#include <catch2/catch.hpp>

#include "sample.hpp"

namespace ckpt::format {

namespace {

using Bytes = std::vector<std::byte>;

ShardPart large_part() {
  std::vector<TensorSpec> tensors;
  for (int index = 0; index < 3000; ++index) {
    const std::string name = "model.layers." + std::to_string(index * 7919 % 3000) + ".exp_avg";
    TensorSpec spec = test::tensor(name, DType::f32, {16, index % 7});
    if (index % 2 == 0) {
      spec.piece = Piece{{64, 7}, {32, 0}, {}, {}, static_cast<std::uint32_t>(index % 3)};
    }
    tensors.push_back(std::move(spec));
  }
  ShardPart part;
  part.record.job = "large";
  part.record.layout = test::layout_of(tensors, 100);
  part.record.bytes = part.record.layout.slot_bytes;
  part.record.chunk_bytes = 4096;
  part.record.chunk_crcs.assign(part.record.bytes / 4096, 5);
  part.member_crcs = {1, 2};
  return part;
}

PartFront front_of(std::span<const std::byte> part) {
  const auto front = decode_part_front(part.first(part_front_bytes(part).value()));
  if (!front) FAIL(front.error().message());
  return *front;
}

// The same part with a changed front. Its blocks stay.
Bytes with_front(const Bytes& good, const PartFront& front) {
  Bytes bad = encode(front);
  const std::uint64_t front_bytes = part_front_bytes(good).value();
  bad.insert(bad.end(), good.begin() + static_cast<std::ptrdiff_t>(front_bytes), good.end());
  return bad;
}

bool is_refused(const Bytes& bad) {
  const auto part = decode_shard_part(bad, test::seal_of(bad));
  return !part && part.error().code() == Errc::corruption;
}

}  // namespace

TEST_CASE("shard part: it comes back whole", "[unit][format]") {
  Random random(61);
  for (int round = 0; round < 300; ++round) {
    const ShardPart part = test::sample_part(random, 2, 4);
    const Bytes bytes = encode(part);
    const auto again = decode_shard_part(bytes, test::seal_of(bytes));
    if (!again) FAIL(again.error().message());
    CHECK(encode(again->record) == encode(part.record));
    CHECK(again->member_crcs == part.member_crcs);
    CHECK(encode(*again) == bytes);
    const PartFront front = front_of(bytes);
    CHECK(front.record_digest == digest_of(part.record));
    CHECK(front.files == files_of(part));
    CHECK(front.part_bytes() == bytes.size());
  }
}

TEST_CASE("shard part: every turned bit and every cut is found", "[unit][format]") {
  Random random(62);
  const Bytes good = encode(test::sample_part(random));
  const PartSeal seal = test::seal_of(good);
  REQUIRE(decode_shard_part(good, seal));
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const auto result = decode_shard_part(bad, seal);
    REQUIRE_FALSE(result);
    REQUIRE(result.error().code() == Errc::corruption);
  }
  for (std::size_t size = 0; size < good.size(); ++size) {
    const auto cut = std::span(good).first(size);
    REQUIRE_FALSE(decode_shard_part(cut, seal));
    PartSeal shorter = seal;
    shorter.bytes = size;
    REQUIRE_FALSE(decode_shard_part(cut, shorter));
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  CHECK_FALSE(decode_shard_part(longer, seal));
  PartSeal fitting = seal;
  ++fitting.bytes;
  CHECK_FALSE(decode_shard_part(longer, fitting));
  // A sound part, and not the one that was sealed.
  Random same(62);
  ShardPart other = test::sample_part(same);
  other.record.chunk_crcs[0] ^= 1;
  const Bytes sound = encode(other);
  REQUIRE(sound.size() == good.size());
  CHECK(decode_shard_part(sound, test::seal_of(sound)));
  CHECK(decode_shard_part(sound, seal).error().code() == Errc::corruption);
}

TEST_CASE("shard part: bytes under a seal that fits lead to an error or to that part",
          "[unit][format]") {
  Random random(63);
  int accepted = 0;
  int fronts = 0;
  for (int round = 0; round < 5; ++round) {
    const Bytes good = encode(test::sample_part(random));
    const std::uint64_t front_bytes = part_front_bytes(good).value();
    for (std::size_t at = 0; at < good.size(); ++at) {
      for (const auto change :
           {std::byte{1}, std::byte{0x80}, static_cast<std::byte>(1 + random.below(255))}) {
        Bytes bad = good;
        bad[at] ^= change;
        Bytes front(bad.begin(), bad.begin() + static_cast<std::ptrdiff_t>(front_bytes));
        test::repair_checksum(front);
        std::ranges::copy(front, bad.begin());
        const PartSeal seal{bad.size(), front_bytes, ckpt::digest_of(front)};
        fronts += decode_part_front(front).has_value();
        const auto result = decode_shard_part(bad, seal);
        if (!result) continue;
        ++accepted;
        REQUIRE(encode(*result) == bad);
      }
    }
  }
  CHECK(fronts > 1000);  // The checksum was repaired: the fields themselves were reached.
  CHECK(accepted > 0);   // The checksums of files are the files' own matter.
}

TEST_CASE("shard part: the claims of its front are checked", "[unit][format]") {
  const Bytes good = encode(large_part());
  const PartFront front = front_of(good);
  REQUIRE(front.blocks.size() > 3);
  REQUIRE_FALSE(is_refused(with_front(good, front)));
  const auto refused_after = [&](auto change) {
    PartFront bad = front;
    change(bad);
    return is_refused(with_front(good, bad));
  };
  CHECK(refused_after([](PartFront& it) { it.record_digest.low ^= 1; }));
  CHECK(refused_after([](PartFront& it) { it.tensors -= 1; }));
  CHECK(refused_after([](PartFront& it) { it.blocks.pop_back(); }));
  CHECK(refused_after([](PartFront& it) { it.blocks[1].tensors += 1; }));
  CHECK(refused_after([](PartFront& it) { it.blocks[1].bytes -= 1; }));
  CHECK(refused_after([](PartFront& it) { it.blocks[1].bytes = UINT32_MAX; }));
  CHECK(refused_after([](PartFront& it) { it.blocks[1].digest.high ^= 1; }));
  CHECK(refused_after([](PartFront& it) { it.blocks[1].first_name += "x"; }));
  CHECK(refused_after([](PartFront& it) { std::swap(it.blocks[1], it.blocks[2]); }));
  CHECK(refused_after([](PartFront& it) { it.files[0].bytes += 1; }));
  CHECK(refused_after([](PartFront& it) { it.files[0].archive = "model.pt"; }));
  CHECK(refused_after([](PartFront& it) { it.record.id.rank = 1; }));
  CHECK(refused_after([](PartFront& it) { it.record.layout.slot_bytes += 4096; }));
  CHECK(refused_after(
      [](PartFront& it) { it.record.layout.members[0].file_name = "rank-00000.part"; }));
}

TEST_CASE("shard part: blocks that fit no layout are refused", "[unit][format]") {
  const ShardPart part = large_part();
  const Bytes good = encode(part);
  const auto refused_with = [&](auto change) {
    Layout layout = part.record.layout;
    change(layout.tensors);
    PartFront front = front_of(good);
    const Bytes blocks = encode_blocks(layout, front);
    Bytes bad = encode(front);
    bad.insert(bad.end(), blocks.begin(), blocks.end());
    return is_refused(bad);
  };
  using Tensors = std::vector<TensorPlace>;
  CHECK_FALSE(refused_with([](Tensors&) {}));
  CHECK(refused_with([](Tensors& all) { all.pop_back(); }));
  CHECK(refused_with([](Tensors& all) { all.push_back(all.front()); }));
  CHECK(refused_with([](Tensors& all) { std::swap(all[3], all[4]); }));
  CHECK(refused_with([](Tensors& all) { all[3].extent.offset += 4; }));
  CHECK(refused_with([](Tensors& all) { all[0].piece = Piece{{1}, {9}, {}, {}, 0}; }));
}

TEST_CASE("shard part: each name is found in one block", "[unit][format]") {
  const ShardPart part = large_part();
  const Bytes bytes = encode(part);
  const PartFront front = front_of(bytes);
  CHECK(front.front_bytes < bytes.size() / 10);
  for (const TensorPlace& expected : part.record.layout.tensors) {
    const PartBlock* block = front.find(expected.name);
    REQUIRE(block != nullptr);
    const auto entries =
        decode_part_block(front, *block, std::span(bytes).subspan(block->offset, block->bytes));
    REQUIRE(entries);
    const auto found = std::ranges::find(*entries, expected.name,
                                         [](const PartEntry& entry) { return entry.tensor.name; });
    REQUIRE(found != entries->end());
    REQUIRE(found->tensor == expected);
    REQUIRE(part.record.layout.tensors[found->place] == expected);
  }
  CHECK(front.find("a name before all others") == nullptr);
  const PartBlock* last = front.find("zzz");
  REQUIRE(last != nullptr);
  auto wrong = std::span(bytes).subspan(last->offset - 1, last->bytes);
  CHECK(decode_part_block(front, *last, wrong).error().code() == Errc::corruption);
  CHECK_FALSE(decode_part_block(front, *last, wrong.first(wrong.size() - 1)));
}

TEST_CASE("shard part: a tensor that lies in no file is not read from a block alone",
          "[unit][format]") {
  const Bytes bytes = encode(large_part());
  const PartFront good = front_of(bytes);
  const auto refused_with = [&](auto change) {
    Layout layout = good.record.layout;
    layout.tensors = {large_part().record.layout.tensors[5]};
    change(layout.tensors[0]);
    PartFront front = good;
    const Bytes block = encode_blocks(layout, front);
    front.tensors = good.tensors;
    return !decode_part_block(front, front.blocks[0], block);
  };
  CHECK_FALSE(refused_with([](TensorPlace&) {}));
  CHECK(refused_with([](TensorPlace& it) { it.extent.offset = 0; }));
  CHECK(refused_with([&](TensorPlace& it) { it.extent.offset = good.record.layout.slot_bytes; }));
  CHECK(refused_with([](TensorPlace& it) { it.extent.bytes += 4; }));
  CHECK(refused_with([](TensorPlace& it) { it.member = 2; }));
  CHECK(refused_with([](TensorPlace& it) { it.piece = Piece{{1}, {9}, {}, {}, 0}; }));
}

TEST_CASE("shard part: a front of another kind or version is not taken for a damaged one",
          "[unit][format]") {
  Random random(64);
  Bytes good = encode(test::sample_part(random));
  CHECK(part_front_bytes(encode(test::sample_report(random))).error().code() == Errc::corruption);
  good[0] = std::byte{4};
  CHECK(part_front_bytes(good).error().code() == Errc::version_mismatch);
  good[0] = std::byte{2};
  good[7] = std::byte{0xff};
  CHECK(part_front_bytes(good).error().code() == Errc::corruption);
}

TEST_CASE("shard part: its name has one spelling", "[unit][format]") {
  CHECK(part_name(3) == "rank-00003.part");
  CHECK(is_part_name("rank-00003.part", 3));
  CHECK_FALSE(is_part_name("rank-00003.part", 4));
  for (const auto* name : {"rank-3.part", "rank-000003.part", "rank-00003.blobs",
                           "rank-00003.part.t1", "rank-.part", "rank-99999999999.part"})
    CHECK_FALSE(is_part_name(name));
}

}  // namespace ckpt::format
