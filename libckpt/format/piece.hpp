// Piece: checks of what a tensor says about its place in a larger one (ckpt/piece.hpp).
//
// There is one form for each part: a whole tensor in row-major order has no piece.
#pragma once

#include <ckpt/piece.hpp>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ckpt::format {

inline constexpr std::size_t dimensions_max = 32;
// Sums of two places in a tensor then fit into 64 bits; and no framework counts further.
inline constexpr std::uint64_t global_bytes_max = INT64_MAX;

// Returns true if `order` names each dimension once.
bool is_order(std::span<const std::uint8_t> order, std::size_t dimensions);
// The size of the global tensor in bytes; nothing if it is over the maximum, even where a dimension
// is 0.
std::optional<std::uint64_t> global_bytes(DType dtype, std::span<const std::uint64_t> shape);
// Errors: invalid_argument (another number of dimensions than the tensor's, or outside of it).
Status check_inside(const Region& region, std::span<const std::uint64_t> tensor);

// Returns why a tensor of this type and shape cannot be that part of a larger one, with the
// numbers; an empty text if it can.
std::string problem_of(const Piece& piece, DType dtype, std::span<const std::int64_t> shape);

// For a piece without a problem, and none for a whole tensor: its elements in the global tensor,
// and the global tensor's shape.
Region region_of(const std::optional<Piece>& piece, std::span<const std::int64_t> shape);
std::vector<std::uint64_t> global_shape_of(const std::optional<Piece>& piece,
                                           std::span<const std::int64_t> shape);

// The name of the tensor that a part belongs to. A rank with several parts of `w` cannot give one
// name to all: it names each after a box that it lies in, as in "w[0:4,2:4]", which may leave out
// the last dimensions; a flat range after a range of elements, as in "w[20:32]". Returns `name`
// where the part does not lie there, or where there is no piece: normalized() drops that of a whole
// tensor, unless it has the number of a copy.
std::string_view tensor_name_of(std::string_view name, const std::optional<Piece>& piece,
                                std::span<const std::int64_t> shape);
// Whether `names`, which ascend, have the name, or that of the tensor that it is a part of.
bool is_among(std::span<const std::string> names, std::string_view name,
              const std::optional<Piece>& piece, std::span<const std::int64_t> shape);
// The names of parts of `name` are between these two: from the first one on, below the second one.
std::string first_part_name(std::string_view name);
std::string behind_part_names(std::string_view name);

// Brings a piece without a problem to its one form: no order where it is row-major, no number of
// copies, since a Layout says what lies there and not who else has it, and no piece for a whole
// tensor.
std::optional<Piece> normalized(std::optional<Piece> piece, std::span<const std::int64_t> shape);

}  // namespace ckpt::format
