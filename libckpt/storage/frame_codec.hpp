// FrameCodec: one Chunk of a packed file, made small and whole again.
//
//   bytes -> byte planes -> one zstd frame, which says its content's size
//
// Nothing that a frame says is believed: its content must have exactly the size that the Layout
// gives its Chunk, before it is opened, and it is opened into memory of that size. So a small frame
// cannot become large. Whether the bytes are the right ones is for the Chunk's checksum.
//
// Threads: any; each call is long, and belongs on a Compute.
#pragma once

#include <ckpt/result.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "storage/page_buffer.hpp"

namespace ckpt::storage {

// Compression: how members are packed.
struct Compression {
  // 1 to 19, as of zstd; 0: no searching for repeated bytes, only an entropy code for each plane.
  // For weights that shrinks as well as the others, and is the fastest.
  int level = 0;
  bool operator==(const Compression&) const = default;

  static constexpr int level_max = 19;
};

// "zstd", "zstd:3"; "none" or nothing: no compression. Errors: invalid_argument.
Result<std::optional<Compression>> parse_compression(std::string_view text);
// Errors: unsupported (names what this machine lacks).
Status check_available(const Compression& compression);

// `bytes` in pieces, one behind the other; `width` as in split_planes. Writes into `target`, which
// has room for all of them, and returns the frame's size, or 0 if it would not save a page. Errors:
// unsupported (no libzstd), exhausted (no memory).
Result<std::size_t> pack_frame(std::span<const std::span<const std::byte>> pieces,
                               std::uint8_t width, const Compression& compression,
                               std::span<std::byte> target);

// Fills `target`, which has the size of what was packed. Errors: corruption (its content has
// another size, or it is damaged), unsupported, exhausted.
Status unpack_frame(std::span<const std::byte> frame, std::uint8_t width,
                    std::span<std::byte> target);

}  // namespace ckpt::storage
