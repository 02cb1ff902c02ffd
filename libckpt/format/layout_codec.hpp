// LayoutCodec: a Layout as bytes inside other records; libckpt/docs/format.md has the table.
#pragma once

#include "format/codec.hpp"
#include "format/layout.hpp"

namespace ckpt::format {

void write(Writer& writer, const Extent& extent);
void write(Writer& writer, const TensorPlace& tensor);
void write(Writer& writer, const Layout& layout);

Extent read_extent(Reader& reader);
// Validated; on failure the Reader tells it and an empty Layout is returned.
Layout read_layout(Reader& reader);

inline constexpr std::size_t extent_encoded_bytes = 16;

}  // namespace ckpt::format
