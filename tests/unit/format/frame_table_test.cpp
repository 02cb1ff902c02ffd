// Goal:   a table of frames is believed only if it is the sealed one, and only if its frames fit
//         the Chunks of the Layout: no frame may be larger than what it is opened into.
// Method: good tables of shapes at their boundaries; then each field of a good one changed, with a
//         seal that fits the change.
#include "format/frame_table.hpp"

#include <catch2/catch.hpp>

#include "base/units.hpp"
#include "format/member_name.hpp"

namespace ckpt::format {

namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint64_t chunk_bytes = 4 * page_bytes;

TableSeal seal_of(const Bytes& table) {
  return {table.size(), ckpt::digest_of(std::span<const std::byte>(table))};
}

// Three Chunks and a bit, from the middle of a Chunk on.
PackedShape shape_of_four() {
  return {{2 * page_bytes, 12 * page_bytes + 100}, chunk_bytes};
}

std::vector<Frame> good_frames() {
  return {{0, 100, 2},
          {page_bytes, chunk_bytes, stored_as_it_is},
          {5 * page_bytes, page_bytes, 8},
          {6 * page_bytes, 2 * page_bytes + 100, stored_as_it_is}};
}

constexpr std::uint64_t frames_end = 9 * page_bytes;

Result<std::vector<Frame>> decode(const std::vector<Frame>& frames) {
  const Bytes table = encode(frames);
  return decode_frame_table(table, seal_of(table), shape_of_four(), frames_end + table.size());
}

}  // namespace

TEST_CASE("frame table: each Chunk with bytes of the file has one frame", "[unit][format]") {
  const PackedShape shape = shape_of_four();
  REQUIRE(shape.frame_count() == 4);
  CHECK(shape.first_chunk() == 0);
  CHECK(shape.plain(0) == Extent{2 * page_bytes, 2 * page_bytes});
  CHECK(shape.plain(1) == Extent{chunk_bytes, chunk_bytes});
  CHECK(shape.plain(3) == Extent{3 * chunk_bytes, 2 * page_bytes + 100});
  CHECK(shape.file_bytes_max() == (2 + 4 + 4 + 3) * page_bytes + shape.table_bytes());
  CHECK(PackedShape{{page_bytes, 0}, chunk_bytes}.frame_count() == 0);
  CHECK(PackedShape{{chunk_bytes, 1}, chunk_bytes}.frame_count() == 1);
  CHECK(PackedShape{{0, chunk_bytes}, chunk_bytes}.frame_count() == 1);
  CHECK(PackedShape{{0, chunk_bytes + 1}, chunk_bytes}.frame_count() == 2);
}

TEST_CASE("frame table: it comes back as it was", "[unit][format]") {
  const auto frames = decode(good_frames());
  REQUIRE((frames ? "" : frames.error().message()) == "");
  CHECK(*frames == good_frames());
}

TEST_CASE("frame table: frames that do not fit their Chunks are refused", "[unit][format]") {
  const auto refused = [](std::size_t index, auto change) {
    std::vector<Frame> frames = good_frames();
    change(frames.at(index));
    const auto decoded = decode(frames);
    return !decoded && decoded.error().code() == Errc::corruption;
  };
  CHECK(refused(0, [](Frame& frame) { frame.width = 3; }));
  CHECK(refused(0, [](Frame& frame) { frame.width = 16; }));
  CHECK(refused(0, [](Frame& frame) { frame.width = stored_as_it_is; }));
  CHECK(refused(0, [](Frame& frame) { frame.offset = 1; }));
  CHECK(refused(0, [](Frame& frame) { frame.offset = frames_end; }));
  CHECK(refused(0, [](Frame& frame) { frame.offset = UINT64_MAX - page_bytes + 1; }));
  CHECK(refused(0, [](Frame& frame) { frame.bytes = 2 * page_bytes; }));
  CHECK(refused(1, [](Frame& frame) { frame.bytes = chunk_bytes + 1; }));
  CHECK(refused(2, [](Frame& frame) { frame.bytes = UINT32_MAX; }));
  CHECK(refused(3, [](Frame& frame) { frame.offset += 6 * page_bytes; }));
  CHECK_FALSE(refused(2, [](Frame& frame) { frame.width = 1; }));
}

TEST_CASE("frame table: only the sealed one is read, for the sealed number of Chunks",
          "[unit][format]") {
  const Bytes table = encode(good_frames());
  const TableSeal seal = seal_of(table);
  const std::uint64_t file_bytes = frames_end + table.size();
  const PackedShape shape = shape_of_four();
  REQUIRE(decode_frame_table(table, seal, shape, file_bytes));
  for (std::size_t bit = 0; bit < table.size() * 8; ++bit) {
    Bytes bad = table;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    REQUIRE_FALSE(decode_frame_table(bad, seal, shape, file_bytes));
  }
  // Whole by its own CRC, and of possible frames, but not the one that was sealed.
  std::vector<Frame> others = good_frames();
  others[0].bytes -= 1;
  const Bytes other = encode(others);
  CHECK(decode_frame_table(other, seal_of(other), shape, file_bytes));
  CHECK_FALSE(decode_frame_table(other, seal, shape, file_bytes));
  const auto cut = std::span(table).first(table.size() - 1);
  CHECK_FALSE(decode_frame_table(cut, seal, shape, file_bytes));
  PackedShape longer = shape;
  longer.member.bytes += chunk_bytes;
  CHECK_FALSE(decode_frame_table(table, seal, longer, file_bytes));
  std::vector<Frame> three = good_frames();
  three.pop_back();
  CHECK_FALSE(decode(three));
  CHECK_FALSE(decode_frame_table(table, seal, shape, shape.file_bytes_max() + 1));
}

TEST_CASE("frame table: a packed file's name is that of the plain one, and more",
          "[unit][format]") {
  CHECK(packed_name("rank-00003.safetensors") == "rank-00003.safetensors.ckz");
  CHECK(plain_name("rank-00003.safetensors.ckz") == "rank-00003.safetensors");
  CHECK_FALSE(plain_name("rank-00003.safetensors"));
  CHECK(is_name_of_rank("rank-00003.safetensors.ckz", 3));
  CHECK_FALSE(is_name_of_rank("rank-00003.part.ckz", 3));
  CHECK_FALSE(is_name_of_rank("rank-00003.safetensors.ckz.ckz", 3));
  // A Layout names plain files only.
  CHECK_FALSE(is_member_name("rank-00003.safetensors.ckz", 3));
}

}  // namespace ckpt::format
