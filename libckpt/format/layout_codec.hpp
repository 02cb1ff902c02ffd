// LayoutCodec: a Layout as bytes inside other records; libckpt/docs/format.md has the table.
#pragma once

#include "format/field_codec.hpp"
#include "format/layout_types.hpp"

namespace ckpt {

auto fields(format::Is<Piece> auto& it) {
  return format::field_list(it.global_shape, it.offset, it.flat_begin, it.order, it.copy);
}

namespace format {

inline constexpr std::size_t member_name_bytes_max = 64;

auto fields(Is<Member> auto& it) {
  return field_list(text(it.file_name, member_name_bytes_max),
                    enumerator(it.kind, MemberKind::safetensors, MemberKind::raw), it.extent,
                    it.header_bytes);
}
auto fields(Is<TensorPlace> auto& it) {
  return field_list(text(it.name, name_bytes_max), enumerator(it.dtype, DType::boolean, DType::c64),
                    it.shape, it.extent, it.member, text(it.alias_of, name_bytes_max), it.piece);
}
auto fields(Is<Layout> auto& it) {
  return field_list(it.version, it.blob_capacity, it.slot_bytes, it.members, it.tensors);
}

void write(Writer& writer, const Layout& layout);

// Validated. After a failure the Reader has the error, and an empty Layout is returned.
Layout read_layout(Reader& reader);

}  // namespace format
}  // namespace ckpt
