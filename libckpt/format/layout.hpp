// Layout: made of the descriptions of a rank's tensors (layout_types.hpp says what it is).
//
// A Layout is agreed once, and changes only when tensors are added, removed or resized.
#pragma once

#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.hpp"
#include "format/layout_types.hpp"
#include "format/member_name.hpp"

namespace ckpt::format {

// TensorSpec: the description of a tensor from which a Layout is made.
struct TensorSpec {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape;
  std::string alias_of;
  std::string archive;  // The torch archive it belongs to; empty: none.
  std::optional<Piece> piece;
};

// Errors: invalid_argument (duplicate name, negative or overflowing shape, alias of nothing, a name
// that is empty, too long, "__metadata__" or not UTF-8, a piece outside of its global tensor),
// exhausted (more than `tensors_max`, or names and shapes of more than `tensor_list_bytes_max`). An
// alias has the type, the shape and the piece of the tensor that it names, which is no alias
// itself.
Result<Layout> make_layout(std::span<const TensorSpec> tensors, std::uint32_t rank,
                           std::uint64_t blob_capacity, std::uint32_t version = 1);

// Checks one tensor, which is tied to no other, and returns its bytes. Errors: those of
// make_layout.
Result<std::uint64_t> check_tensor(const TensorSpec& tensor);

// Names the tensors that have bytes in the extent, for a message: `tensor "a"`, or `tensor "a" and
// 2 others near it`. Empty: none has.
std::string tensors_in(const Layout& layout, const Extent& extent);

// The model's fingerprint: equal for equal names, types, shapes, pieces and places. It leaves out
// file names and the version, so that ranks with the same tensors agree. Ranks with other parts of
// one tensor do not.
Digest fingerprint(const Layout& layout);

}  // namespace ckpt::format
