// Goal:   every byte of a Chunk belongs to exactly one segment, in a file or in padding.
// Method: members with and without padding, Chunks that end before, at and after their edges; the
//         segments must tile the Chunk and agree with a byte-by-byte search.
#include "storage/chunk_map.hpp"

#include <catch2/catch.hpp>

namespace ckpt::storage {

TEST_CASE("chunk map: segments tile the Chunk and name the file of each byte", "[unit][storage]") {
  const std::vector<format::Extent> members{{0, 10}, {16, 16}, {32, 0}, {48, 1}};
  for (std::uint64_t begin = 0; begin < 64; ++begin) {
    for (std::uint64_t end = begin + 1; end <= 64; ++end) {
      CAPTURE(begin, end);
      const auto segments = segments_of({begin, end - begin}, members);
      std::uint64_t position = begin;
      bool matches = true;
      for (const FileSegment& segment : segments) {
        matches = matches && segment.extent.offset == position && segment.extent.bytes > 0;
        for (; position < segment.extent.end(); ++position) {
          std::optional<std::size_t> member;
          for (std::size_t index = 0; index < members.size(); ++index) {
            if (position >= members[index].offset && position < members[index].end())
              member = index;
          }
          matches = matches && segment.member == member;
          if (member) {
            matches = matches && segment.file_offset + (position - segment.extent.offset) ==
                                     position - members[*member].offset;
          }
        }
      }
      REQUIRE(matches);
      REQUIRE(position == end);
    }
  }
}

TEST_CASE("chunk map: a range is found across pieces of memory", "[unit][storage]") {
  std::vector<std::byte> bytes(10);
  for (std::size_t index = 0; index < bytes.size(); ++index) bytes[index] = std::byte(index);
  std::vector<os::FileSpan> slot(3);
  slot[0].bytes = std::span(bytes).first(3);
  slot[1].bytes = std::span(bytes).subspan(3, 1);
  slot[2].bytes = std::span(bytes).subspan(4);
  REQUIRE(bytes_of(slot) == 10);
  for (std::uint64_t begin = 0; begin < 10; ++begin) {
    for (std::uint64_t end = begin; end <= 10; ++end) {
      std::vector<std::byte> joined;
      for (const auto piece : pieces_at(slot, {begin, end - begin})) {
        joined.insert(joined.end(), piece.begin(), piece.end());
      }
      REQUIRE(joined == std::vector<std::byte>(bytes.begin() + static_cast<long>(begin),
                                               bytes.begin() + static_cast<long>(end)));
    }
  }
}

}  // namespace ckpt::storage
