// The parameters for literals are experimental: zstd may change them, and refuses what it does not
// know. A refusal only costs size.
#define ZSTD_STATIC_LINKING_ONLY
#include "storage/frame_codec.hpp"

#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <new>

#include "base/assert.hpp"
#include "base/units.hpp"
#include "storage/byte_planes.hpp"
#include "storage/zstd_library.hpp"

namespace ckpt::storage {

namespace {

// The fastest level that still has an entropy code.
constexpr int fastest_level = -5;

template <class Context>
using Owned = std::unique_ptr<Context, size_t (*)(Context*)>;

Unexpected no_memory() {
  return fail(Errc::exhausted, "pack a Chunk: zstd has no memory");
}

Unexpected broken(std::string_view problem) {
  return fail(Errc::corruption, fmt::format("open a frame: {}", problem));
}

Result<Owned<ZSTD_CCtx>> make_compressor(const ZstdLibrary& zstd, const Compression& compression) {
  Owned<ZSTD_CCtx> context(zstd.create_compression(), zstd.free_compression);
  if (!context) return no_memory();
  const bool is_plain = compression.level == 0;
  zstd.set_parameter(context.get(), ZSTD_c_compressionLevel,
                     is_plain ? fastest_level : compression.level);
  zstd.set_parameter(context.get(), ZSTD_c_contentSizeFlag, 1);
  if (is_plain) zstd.set_parameter(context.get(), ZSTD_c_literalCompressionMode, ZSTD_lcm_huffman);
  return context;
}

// The pieces as one range of bytes, which is copied only if there are several.
std::span<const std::byte> joined(std::span<const std::span<const std::byte>> pieces,
                                  std::vector<std::byte>& memory) {
  if (pieces.size() == 1) return pieces.front();
  for (const auto piece : pieces) memory.insert(memory.end(), piece.begin(), piece.end());
  return memory;
}

}  // namespace

Result<std::optional<Compression>> parse_compression(std::string_view text) {
  constexpr std::string_view name = "zstd", before_level = "zstd:";
  if (text.empty() || text == "none") return std::optional<Compression>();
  Compression compression;
  if (text == name) return std::optional(compression);
  const bool has_level = text.starts_with(before_level);
  const std::string_view level = has_level ? text.substr(before_level.size()) : text;
  const auto [end, error] =
      std::from_chars(level.data(), level.data() + level.size(), compression.level);
  const bool is_level = error == std::errc() && end == level.data() + level.size() &&
                        compression.level >= 1 && compression.level <= Compression::level_max;
  if (has_level && is_level) return std::optional(compression);
  return fail(Errc::invalid_argument,
              fmt::format("must be none, zstd, or zstd: and a level from 1 to {}, as zstd:3",
                          Compression::level_max));
}

Status check_available(const Compression&) {
  CKPT_TRY([[maybe_unused]] const ZstdLibrary* zstd, ZstdLibrary::load());
  return {};
}

Result<std::size_t> pack_frame(std::span<const std::span<const std::byte>> pieces,
                               std::uint8_t width, const Compression& compression,
                               std::span<std::byte> target) {
  CKPT_TRY(const ZstdLibrary* zstd, ZstdLibrary::load());
  CKPT_TRY(const auto context, make_compressor(*zstd, compression));
  std::vector<std::byte> copy;
  const std::span<const std::byte> bytes = joined(pieces, copy);
  CKPT_ASSERT(target.size() >= bytes.size());
  // One page less than they take now. It is the limit, too: a frame that needs more is not wanted.
  const std::uint64_t pages = align_up(bytes.size(), page_bytes);
  if (pages <= page_bytes) return std::size_t{0};
  const std::span<std::byte> room = target.first(pages - page_bytes);
  std::vector<std::byte> planes(width == 1 ? 0 : bytes.size());
  if (width != 1) split_planes(bytes, width, planes);
  const std::span<const std::byte> content = width == 1 ? bytes : planes;
  const std::size_t packed =
      zstd->compress(context.get(), room.data(), room.size(), content.data(), content.size());
  // The only other error is that it does not fit.
  if (zstd->is_error(packed) != 0) return std::size_t{0};
  CKPT_ASSERT(packed <= room.size());
  return packed;
}

Status unpack_frame(std::span<const std::byte> frame, std::uint8_t width,
                    std::span<std::byte> target) {
  CKPT_TRY(const ZstdLibrary* zstd, ZstdLibrary::load());
  const unsigned long long said = zstd->content_bytes(frame.data(), frame.size());
  if (said == ZSTD_CONTENTSIZE_UNKNOWN || said == ZSTD_CONTENTSIZE_ERROR)
    return broken("it does not say how large its content is");
  if (said != target.size())
    return broken(fmt::format("its content has {} bytes, its Chunk has {}", said, target.size()));
  // Else a second frame would follow, or something that is none.
  if (zstd->frame_bytes(frame.data(), frame.size()) != frame.size())
    return broken("it has another size than its table says");
  const Owned<ZSTD_DCtx> context(zstd->create_decompression(), zstd->free_decompression);
  if (!context) return no_memory();
  std::vector<std::byte> planes(width == 1 ? 0 : target.size());
  const std::span<std::byte> content = width == 1 ? target : std::span(planes);
  const std::size_t opened =
      zstd->decompress(context.get(), content.data(), content.size(), frame.data(), frame.size());
  if (zstd->is_error(opened) != 0) return broken(zstd->error_name(opened));
  if (opened != target.size()) return broken(fmt::format("it had only {} bytes", opened));
  if (width != 1) join_planes(content, width, target);
  return {};
}

}  // namespace ckpt::storage
