#include "format/layout_codec.hpp"

namespace ckpt::format {

namespace {

constexpr std::size_t file_name_bytes_max = 64;
constexpr std::size_t member_encoded_bytes_min = 4 + 1 + extent_encoded_bytes + 8;
constexpr std::size_t tensor_encoded_bytes_min = 4 + 1 + 4 + extent_encoded_bytes + 4 + 4;

Member read_member(Reader& reader) {
  Member member;
  member.file_name = reader.string(file_name_bytes_max);
  member.kind = reader.enumerator(MemberKind::safetensors, MemberKind::raw);
  member.extent = read_extent(reader);
  member.header_bytes = reader.u64();
  return member;
}

TensorPlace read_tensor(Reader& reader) {
  TensorPlace tensor;
  tensor.name = reader.string(name_bytes_max);
  tensor.dtype = reader.enumerator(DType::boolean, DType::c64);
  tensor.shape = reader.list<std::int64_t>(sizeof(std::int64_t),
                                           [&] { return static_cast<std::int64_t>(reader.u64()); });
  tensor.extent = read_extent(reader);
  tensor.member = reader.u32();
  tensor.alias_of = reader.string(name_bytes_max);
  return tensor;
}

}  // namespace

void write(Writer& writer, const Extent& extent) {
  writer.u64(extent.offset);
  writer.u64(extent.bytes);
}

void write(Writer& writer, const TensorPlace& tensor) {
  writer.string(tensor.name);
  writer.u8(static_cast<std::uint8_t>(tensor.dtype));
  writer.list(tensor.shape,
              [&](std::int64_t dimension) { writer.u64(static_cast<std::uint64_t>(dimension)); });
  write(writer, tensor.extent);
  writer.u32(tensor.member);
  writer.string(tensor.alias_of);
}

void write(Writer& writer, const Layout& layout) {
  writer.u32(layout.version);
  writer.u64(layout.blob_capacity);
  writer.u64(layout.slot_bytes);
  writer.list(layout.members, [&](const Member& member) {
    writer.string(member.file_name);
    writer.u8(static_cast<std::uint8_t>(member.kind));
    write(writer, member.extent);
    writer.u64(member.header_bytes);
  });
  writer.list(layout.tensors, [&](const TensorPlace& tensor) { write(writer, tensor); });
}

Extent read_extent(Reader& reader) {
  Extent extent;
  extent.offset = reader.u64();
  extent.bytes = reader.u64();
  return extent;
}

Layout read_layout(Reader& reader) {
  Layout layout;
  layout.version = reader.u32();
  layout.blob_capacity = reader.u64();
  layout.slot_bytes = reader.u64();
  layout.members =
      reader.list<Member>(member_encoded_bytes_min, [&] { return read_member(reader); });
  layout.tensors =
      reader.list<TensorPlace>(tensor_encoded_bytes_min, [&] { return read_tensor(reader); });
  if (!reader.is_good()) return {};
  if (const auto status = validate(layout); !status) {
    reader.fail_here(status.error().text());
    return {};
  }
  return layout;
}

}  // namespace ckpt::format
