// ChunkTable: combines the checksums of pieces into those of chunks and of files.
//
// A Slot is cut twice: into members with their tensors, and into chunks. Each piece lies within one
// of each. So it is hashed once, while it is copied, and both kinds of checksum follow from that.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/checksum.hpp"
#include "format/shard_record.hpp"

namespace ckpt::format {

enum class PieceKind : std::uint8_t {
  header,   // Bytes of the file outside of its tensors.
  tensor,   // `tensor` is its index.
  blobs,    // The blobs, all together.
  padding,  // Zeros after a member, up to the next page.
};

struct Piece {
  Extent extent;  // In the Slot; never empty, never across the end of a chunk.
  PieceKind kind = PieceKind::padding;
  std::uint32_t tensor = 0;  // Index into layout.tensors.
  std::uint32_t member = 0;
  std::uint64_t chunk = 0;
  bool operator==(const Piece&) const = default;
};

// The pieces in the order of the Slot, without a gap. `pieces_of` ends where the blobs' member
// starts, and is computed once per layout. `blob_pieces` continues there, and changes with each
// step.
std::vector<Piece> pieces_of(const Layout& layout, std::uint64_t chunk_bytes);
std::vector<Piece> blob_pieces(const Layout& layout, std::uint64_t chunk_bytes,
                               std::uint64_t blob_bytes);

Crc32 crc32_of_zeros(std::uint64_t bytes);

// ChunkCrcs: takes the checksums of the pieces in order and combines them by chunk.
class ChunkCrcs {
 public:
  explicit ChunkCrcs(std::uint64_t chunk_bytes);

  void append(Crc32 crc, std::uint64_t bytes);  // Never across the end of a chunk.
  std::uint64_t bytes() const { return bytes_; }
  std::vector<Crc32> take() { return std::move(crcs_); }

 private:
  std::uint64_t chunk_bytes_;
  std::uint64_t bytes_ = 0;
  std::vector<Crc32> crcs_;
};

// MemberCrcs: hashes the chunks of a record in order, each byte once. Returns each chunk's checksum
// at once, and those of the files at the end.
class MemberCrcs {
 public:
  explicit MemberCrcs(const ShardRecord& record);

  // `bytes` are the whole next chunk. Compare the result with record.chunk_crcs.
  Crc32 next_chunk(std::span<const std::byte> bytes);
  bool is_complete() const { return offset_ == bytes_; }
  // The checksum of each member's true bytes. Only when complete.
  const std::vector<Crc32>& crcs() const;

 private:
  std::uint64_t segment_end(std::uint64_t limit, std::size_t& member) const;

  std::vector<Extent> members_;
  std::vector<Crc32> crcs_;
  std::uint64_t bytes_;
  std::uint64_t offset_ = 0;
};

}  // namespace ckpt::format
