#include "format/chunk_table.hpp"

#include <algorithm>
#include <array>

#include "base/assert.hpp"
#include "base/units.hpp"

namespace ckpt::format {

namespace {

class PieceCutter {
 public:
  explicit PieceCutter(std::uint64_t chunk_bytes, std::uint64_t start)
      : chunk_bytes_(chunk_bytes), offset_(start) {
    CKPT_ASSERT(chunk_bytes > 0);
  }

  // Appends everything from the end of the last call up to `end`, cut where chunks end.
  void until(std::uint64_t end, PieceKind kind, std::uint32_t member, std::uint32_t tensor = 0) {
    CKPT_ASSERT(end >= offset_);
    while (offset_ < end) {
      const std::uint64_t chunk = offset_ / chunk_bytes_;
      const std::uint64_t cut = std::min(end, (chunk + 1) * chunk_bytes_);
      pieces_.push_back({{offset_, cut - offset_}, kind, tensor, member, chunk});
      offset_ = cut;
    }
  }

  std::vector<Piece> take() { return std::move(pieces_); }

 private:
  std::uint64_t chunk_bytes_;
  std::uint64_t offset_;
  std::vector<Piece> pieces_;
};

constexpr std::size_t no_member = SIZE_MAX;

}  // namespace

std::vector<Piece> pieces_of(const Layout& layout, std::uint64_t chunk_bytes) {
  PieceCutter cutter(chunk_bytes, 0);
  const std::size_t member_count = blob_member(layout).value_or(layout.members.size());
  std::size_t tensor = 0;
  for (std::uint32_t member = 0; member < member_count; ++member) {
    const Extent file = layout.members[member].extent;
    cutter.until(file.offset, PieceKind::padding, member == 0 ? 0 : member - 1);
    for (; tensor < layout.tensors.size(); ++tensor) {
      const TensorPlace& place = layout.tensors[tensor];
      if (!place.alias_of.empty()) continue;
      if (place.member != member) break;
      cutter.until(place.extent.offset, PieceKind::header, member);
      cutter.until(place.extent.end(), PieceKind::tensor, member,
                   static_cast<std::uint32_t>(tensor));
    }
    cutter.until(file.end(), PieceKind::header, member);
  }
  const std::uint64_t end = member_count == layout.members.size()
                                ? layout.slot_bytes
                                : layout.members[member_count].extent.offset;
  if (member_count > 0)
    cutter.until(end, PieceKind::padding, static_cast<std::uint32_t>(member_count - 1));
  return cutter.take();
}

std::vector<Piece> blob_pieces(const Layout& layout, std::uint64_t chunk_bytes,
                               std::uint64_t blob_bytes) {
  const auto member = blob_member(layout);
  if (!member) return {};
  CKPT_ASSERT(blob_bytes <= layout.blob_capacity);
  const Extent file = layout.members[*member].extent;
  const auto index = static_cast<std::uint32_t>(*member);
  PieceCutter cutter(chunk_bytes, file.offset);
  cutter.until(file.offset + blob_bytes, PieceKind::blobs, index);
  cutter.until(covered_bytes(layout, blob_bytes), PieceKind::padding, index);
  return cutter.take();
}

Crc32 crc32_of_zeros(std::uint64_t bytes) {
  static constexpr std::array<std::byte, page_bytes> zeros{};
  Crc32 crc = 0;
  for (std::uint64_t done = 0; done < bytes; done += page_bytes)
    crc = crc32(std::span(zeros).first(std::min(page_bytes, bytes - done)), crc);
  return crc;
}

ChunkCrcs::ChunkCrcs(std::uint64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {
  CKPT_ASSERT(chunk_bytes > 0);
}

void ChunkCrcs::append(Crc32 crc, std::uint64_t bytes) {
  if (bytes == 0) return;
  const std::uint64_t used = bytes_ % chunk_bytes_;
  CKPT_ASSERT(bytes <= chunk_bytes_ - used);
  if (used == 0) {
    crcs_.push_back(crc);
  } else {
    crcs_.back() = crc32_combine(crcs_.back(), crc, bytes);
  }
  bytes_ += bytes;
}

MemberCrcs::MemberCrcs(const ShardRecord& record)
    : members_(member_extents(record)), crcs_(members_.size(), 0), bytes_(record.bytes) {}

// The segment from offset_ that lies wholly within one member or wholly between members.
std::uint64_t MemberCrcs::segment_end(std::uint64_t limit, std::size_t& member) const {
  member = no_member;
  for (std::size_t index = 0; index < members_.size(); ++index) {
    const Extent& extent = members_[index];
    if (extent.offset > offset_) return std::min(limit, extent.offset);
    if (extent.end() <= offset_) continue;
    member = index;
    return std::min(limit, extent.end());
  }
  return limit;
}

Crc32 MemberCrcs::next_chunk(std::span<const std::byte> bytes) {
  CKPT_ASSERT(bytes.size() <= bytes_ - offset_);
  const std::uint64_t start = offset_;
  const std::uint64_t limit = start + bytes.size();
  Crc32 chunk_crc = 0;
  while (offset_ < limit) {
    std::size_t member = no_member;
    const std::uint64_t end = segment_end(limit, member);
    const std::uint64_t length = end - offset_;
    CKPT_ASSERT(length > 0);
    const Crc32 crc = crc32(bytes.subspan(offset_ - start, length));
    chunk_crc = crc32_combine(chunk_crc, crc, length);
    if (member != no_member) crcs_[member] = crc32_combine(crcs_[member], crc, length);
    offset_ = end;
  }
  return chunk_crc;
}

const std::vector<Crc32>& MemberCrcs::crcs() const {
  CKPT_ASSERT(is_complete());
  return crcs_;
}

}  // namespace ckpt::format
