// FrameTable: where each Chunk of a packed file lies in it, and how it was packed.
//
//   frame | zeros | frame | zeros | ... | table        (each frame begins on a page)
//
// A packed file ("rank-00003.safetensors.ckz") holds the same bytes as the plain one. Each Chunk of
// the Slot that has bytes of the file is one frame, so that readers of single Chunks read single
// frames. The table is believed only with its seal, which the part and the manifest have, and
// only if every frame fits the Layout. So no frame is opened that could be larger than its Chunk.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.hpp"
#include "format/extent.hpp"

namespace ckpt::format {

struct TableSeal {
  std::uint64_t bytes = 0;  // The table is so many last bytes of the file.
  Digest digest;
  bool operator==(const TableSeal&) const = default;
};

// A frame is opened into memory of its Chunk's size: no larger Chunks are packed.
inline constexpr std::uint64_t packed_chunk_bytes_max = 64u << 20;

// How a frame holds its Chunk. Else: its bytes are split into so many planes, and compressed.
inline constexpr std::uint8_t stored_as_it_is = 0;

struct Frame {
  std::uint64_t offset = 0;              // In the file; a multiple of a page.
  std::uint32_t bytes = 0;               // In the file.
  std::uint8_t width = stored_as_it_is;  // 1, 2, 4 or 8: bytes of an element.
  bool operator==(const Frame&) const = default;
};

// PackedShape: which bytes of the Slot a packed file has.
struct PackedShape {
  Extent member;  // Cut to its true size (member_extents).
  std::uint64_t chunk_bytes = 0;

  std::size_t first_chunk() const;
  std::size_t frame_count() const;
  Extent plain(std::size_t frame) const;  // In the Slot.
  std::uint64_t table_bytes() const;
  std::uint64_t file_bytes_max() const;  // If no Chunk shrinks.
  bool is_possible(std::uint64_t file_bytes, const TableSeal& seal) const;
};

std::vector<std::byte> encode(std::span<const Frame> frames);
// `file_bytes` is the size of the whole file. Errors: corruption (not what was sealed, or frames
// that cannot be those of the shape), version_mismatch.
Result<std::vector<Frame>> decode_frame_table(std::span<const std::byte> bytes,
                                              const TableSeal& seal, const PackedShape& shape,
                                              std::uint64_t file_bytes);

// "rank-00003.safetensors.ckz", and back: the name of the plain file, or nothing.
std::string packed_name(std::string_view plain_name);
std::optional<std::string_view> plain_name(std::string_view packed_name);

}  // namespace ckpt::format
