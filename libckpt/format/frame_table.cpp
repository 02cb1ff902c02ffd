#include "format/frame_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/units.hpp"
#include "format/field_codec.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view table_label = "frame table";
constexpr std::string_view extension = ".ckz";
// u16 version, u16 kind, u32 count; a CRC at the end.
constexpr std::uint64_t frame_bytes = sizeof(std::uint64_t) + sizeof(std::uint32_t) + 1;
constexpr std::uint64_t around_frames = 12;

Unexpected broken_table(std::string_view problem) {
  return fail(Errc::corruption, fmt::format("{}: {}", table_label, problem));
}

bool is_width(std::uint8_t width) {
  return width == stored_as_it_is || width == 1 || width == 2 || width == 4 || width == 8;
}

}  // namespace

auto fields(Is<Frame> auto& it) {
  return field_list(it.offset, it.bytes, it.width);
}

std::size_t PackedShape::first_chunk() const {
  return static_cast<std::size_t>(member.offset / chunk_bytes);
}

std::size_t PackedShape::frame_count() const {
  if (member.bytes == 0) return 0;
  return static_cast<std::size_t>(div_ceil(member.end(), chunk_bytes)) - first_chunk();
}

Extent PackedShape::plain(std::size_t frame) const {
  CKPT_ASSERT(frame < frame_count());
  const std::uint64_t chunk = (first_chunk() + frame) * chunk_bytes;
  const std::uint64_t begin = std::max(chunk, member.offset);
  return {begin, std::min(chunk + chunk_bytes, member.end()) - begin};
}

std::uint64_t PackedShape::table_bytes() const {
  return around_frames + frame_count() * frame_bytes;
}

std::uint64_t PackedShape::file_bytes_max() const {
  std::uint64_t bytes = table_bytes();
  const std::size_t count = frame_count();
  if (count == 0) return bytes;
  // Only the first and the last one may be shorter than a Chunk.
  bytes += align_up(plain(0).bytes, page_bytes);
  if (count > 1) bytes += align_up(plain(count - 1).bytes, page_bytes);
  if (count > 2) bytes += (count - 2) * chunk_bytes;
  return bytes;
}

bool PackedShape::is_possible(std::uint64_t file_bytes, const TableSeal& seal) const {
  return chunk_bytes <= packed_chunk_bytes_max && seal.bytes == table_bytes() &&
         file_bytes >= seal.bytes && file_bytes <= file_bytes_max();
}

std::vector<std::byte> encode(std::span<const Frame> frames) {
  const std::vector<Frame> all(frames.begin(), frames.end());
  return PlainWriter::encode(all, RecordKind::frame_table);
}

Result<std::vector<Frame>> decode_frame_table(std::span<const std::byte> bytes,
                                              const TableSeal& seal, const PackedShape& shape,
                                              std::uint64_t file_bytes) {
  if (bytes.size() != seal.bytes || !shape.is_possible(file_bytes, seal))
    return broken_table(fmt::format("it has {} bytes, {} frames take {}", bytes.size(),
                                    shape.frame_count(), shape.table_bytes()));
  if (ckpt::digest_of(bytes) != seal.digest)
    return broken_table("its bytes do not match its digest");
  CKPT_TRY(auto frames,
           PlainReader::decode<std::vector<Frame>>(bytes, RecordKind::frame_table, table_label));
  if (frames.size() != shape.frame_count()) return broken_table("not one frame for each Chunk");
  const std::uint64_t end = file_bytes - bytes.size();
  for (std::size_t index = 0; index < frames.size(); ++index) {
    const Frame& frame = frames[index];
    const std::uint64_t plain = shape.plain(index).bytes;
    const bool is_inside = frame.offset <= end && frame.bytes <= end - frame.offset;
    const bool is_possible =
        is_width(frame.width) &&
        (frame.width == stored_as_it_is ? frame.bytes == plain : frame.bytes < plain);
    if (!is_inside || !is_possible || frame.offset % page_bytes != 0)
      return broken_table(fmt::format("frame {}: {} bytes at {} cannot hold {} bytes", index,
                                      frame.bytes, frame.offset, plain));
  }
  return frames;
}

std::string packed_name(std::string_view plain_name) {
  return std::string(plain_name) + std::string(extension);
}

std::optional<std::string_view> plain_name(std::string_view packed_name) {
  if (!packed_name.ends_with(extension)) return std::nullopt;
  return packed_name.substr(0, packed_name.size() - extension.size());
}

}  // namespace ckpt::format
