// Goal:   checksums of pieces combine to those of chunks and files, each byte hashed once.
// Method: random layouts over random bytes; what is combined must equal what is hashed at once.
#include "format/chunk_table.hpp"

#include <catch2/catch.hpp>

#include "base/units.hpp"
#include "sample.hpp"
#include "support/assertion_trap.hpp"

namespace ckpt::format {

namespace {

std::vector<std::byte> random_bytes(Random& random, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

std::vector<Piece> all_pieces(const ShardRecord& record) {
  auto pieces = pieces_of(record.layout, record.chunk_bytes);
  const auto blobs = blob_pieces(record.layout, record.chunk_bytes, record.blob_bytes);
  pieces.insert(pieces.end(), blobs.begin(), blobs.end());
  return pieces;
}

}  // namespace

TEST_CASE("chunk table: the pieces cover the Slot without a gap", "[unit][format]") {
  Random random(31);
  for (int round = 0; round < 300; ++round) {
    const auto record = test::sample_record(random);
    std::uint64_t offset = 0;
    for (const Piece& piece : all_pieces(record)) {
      REQUIRE(piece.extent.offset == offset);
      REQUIRE(piece.extent.bytes > 0);
      CHECK(piece.chunk == offset / record.chunk_bytes);
      CHECK(piece.chunk == (piece.extent.end() - 1) / record.chunk_bytes);
      if (piece.kind == PieceKind::tensor) {
        const auto& place = record.layout.tensors.at(piece.tensor);
        CHECK(place.alias_of.empty());
        CHECK(piece.extent.offset >= place.extent.offset);
        CHECK(piece.extent.end() <= place.extent.end());
      }
      offset = piece.extent.end();
    }
    CHECK(offset == record.bytes);
  }
}

TEST_CASE("chunk table: pieces combine to chunks", "[unit][format]") {
  Random random(32);
  for (int round = 0; round < 200; ++round) {
    auto record = test::sample_record(random);
    const auto bytes = random_bytes(random, record.bytes);
    ChunkCrcs chunks(record.chunk_bytes);
    for (const Piece& piece : all_pieces(record))
      chunks.append(crc32(std::span(bytes).subspan(piece.extent.offset, piece.extent.bytes)),
                    piece.extent.bytes);
    CHECK(chunks.bytes() == record.bytes);
    record.chunk_crcs = chunks.take();
    REQUIRE(validate(record));
    for (std::size_t index = 0; index < record.chunk_crcs.size(); ++index) {
      const Extent chunk = record.chunk(index);
      CHECK(record.chunk_crcs[index] == crc32(std::span(bytes).subspan(chunk.offset, chunk.bytes)));
    }
  }
}

TEST_CASE("chunk table: one pass gives the checksums of chunks and files", "[unit][format]") {
  Random random(33);
  for (int round = 0; round < 200; ++round) {
    const auto record = test::sample_record(random);
    const auto bytes = random_bytes(random, record.bytes);
    MemberCrcs members(record);
    for (std::size_t index = 0; index < record.chunk_crcs.size(); ++index) {
      const Extent chunk = record.chunk(index);
      const auto chunk_bytes = std::span(bytes).subspan(chunk.offset, chunk.bytes);
      CHECK(members.next_chunk(chunk_bytes) == crc32(chunk_bytes));
    }
    REQUIRE(members.is_complete());
    const auto extents = member_extents(record);
    REQUIRE(members.crcs().size() == extents.size());
    for (std::size_t index = 0; index < extents.size(); ++index)
      CHECK(members.crcs()[index] ==
            crc32(std::span(bytes).subspan(extents[index].offset, extents[index].bytes)));
  }
}

TEST_CASE("chunk table: boundaries of a chunk", "[unit][format]") {
  const auto layout = test::layout_of({test::tensor("a", DType::u8, {4095})});
  const auto pieces = pieces_of(layout, 8192);
  REQUIRE(pieces.size() == 3);
  CHECK(pieces[0] == Piece{{0, 4096}, PieceKind::header, 0, 0, 0});
  CHECK(pieces[1] == Piece{{4096, 4095}, PieceKind::tensor, 0, 0, 0});
  CHECK(pieces[2] == Piece{{8191, 1}, PieceKind::padding, 0, 0, 0});
  CHECK(pieces_of(layout, 4096).size() == 3);
  const auto larger = test::layout_of({test::tensor("a", DType::u8, {4097})});
  CHECK(pieces_of(larger, 8192).size() == 4);
}

TEST_CASE("chunk table: zeros", "[unit][format]") {
  for (const std::size_t size : {0u, 1u, 4095u, 4096u, 4097u, 10000u})
    CHECK(crc32_of_zeros(size) == crc32(std::vector<std::byte>(size)));
}

TEST_CASE("chunk table: misuse is a bug", "[unit][format]") {
  ChunkCrcs chunks(4096);
  chunks.append(1, 4095);
  REQUIRE_TRIPS(chunks.append(2, 2));
  Random random(34);
  const MemberCrcs members(test::sample_record(random));
  REQUIRE_TRIPS(members.crcs());
}

}  // namespace ckpt::format
