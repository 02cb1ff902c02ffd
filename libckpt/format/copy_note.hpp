// CopyNote: the checksum of bytes that several ranks should have alike, and which bytes they are.
//
// Ranks with notes of one identity hold the same elements of the same tensor, in the same order.
#pragma once

#include <ckpt/piece.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/checksum.hpp"
#include "format/fields.hpp"
#include "format/layout.hpp"

namespace ckpt::format {

struct CopyNote {
  std::string name;  // The tensor's, or the blob's.
  Digest identity;   // Made of its name, its type and the elements that it has.
  Crc32 crc = 0;
  bool operator==(const CopyNote&) const = default;
};
auto fields(Is<CopyNote> auto& it) {
  return field_list(text(it.name, name_bytes_max), it.identity, it.crc);
}

struct CopiedElements {
  std::string_view name;
  DType dtype = DType::u8;
  std::span<const std::uint64_t> global_shape;
  const Region& region;
  std::span<const std::uint8_t> order;  // As in Piece.
};
// `bytes`: only these, counted from the first byte of the region. None: all.
Digest identity_of(const CopiedElements& elements, std::optional<Extent> bytes = std::nullopt);

}  // namespace ckpt::format
