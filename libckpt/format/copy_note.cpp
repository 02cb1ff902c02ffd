#include "format/copy_note.hpp"

#include <variant>

#include "format/codec.hpp"

namespace ckpt::format {

Digest identity_of(const CopiedElements& elements, std::optional<Extent> bytes) {
  Writer writer;
  writer.string(elements.name);
  writer.u8(static_cast<std::uint8_t>(elements.dtype));
  writer.list(elements.global_shape, [&](std::uint64_t length) { writer.u64(length); });
  if (const auto* range = std::get_if<FlatRange>(&elements.region)) {
    writer.u64(range->begin);
    writer.u64(range->count);
  } else {
    const Box& box = std::get<Box>(elements.region);
    writer.list(box.offset, [&](std::uint64_t index) { writer.u64(index); });
    writer.list(box.shape, [&](std::uint64_t length) { writer.u64(length); });
  }
  writer.list(elements.order, [&](std::uint8_t dimension) { writer.u8(dimension); });
  if (bytes) {
    writer.u64(bytes->offset);
    writer.u64(bytes->bytes);
  }
  return ckpt::digest_of(writer.take());
}

}  // namespace ckpt::format
