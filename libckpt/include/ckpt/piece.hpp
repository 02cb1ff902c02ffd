// Piece: the part of a larger tensor that a rank holds. Any reader finds it by what it is.
//
// A part is a box with an offset and a length in each dimension, or a range of the tensor as it is
// flattened in row-major order. A box of no dimensions is the one element of a scalar.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace ckpt {

struct Box {
  std::vector<std::uint64_t> offset;
  std::vector<std::uint64_t> shape;  // As long as `offset`.
  std::uint64_t end(std::size_t dimension) const { return offset[dimension] + shape[dimension]; }
  bool operator==(const Box&) const = default;
};

struct FlatRange {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
  bool operator==(const FlatRange&) const = default;
};

// Some elements of a tensor, held by a shard or wanted by a reader.
using Region = std::variant<Box, FlatRange>;

// Says where a registered tensor lies in the global one. Its own shape says how large the part is.
// A rank with several parts of a tensor "w" names each after a box that it lies in, "w[0:4,2:4]",
// or a flat range after a range, "w[20:32]": others find them as parts of "w".
struct Piece {
  std::vector<std::uint64_t> global_shape;
  // A box's first index in each dimension of the global tensor.
  std::vector<std::uint64_t> offset;
  // Set for a flat range: its first element. Then `offset` and `order` are empty, and the tensor
  // itself has one dimension.
  std::optional<std::uint64_t> flat_begin;
  // The dimensions of the global tensor from the slowest to the fastest in memory; empty:
  // row-major. With {0, 2, 3, 1} (channels last), the tensor's own shape is that of N, H, W, C.
  std::vector<std::uint8_t> order;
  // Ranks that hold the same part number their copies from 0. Without `copies`, number them from 1:
  // a 0 looks like a part that no other rank has, and is not compared with them.
  std::uint32_t copy = 0;
  // How many ranks hold the part and say so, each with its number: they divide its capture among
  // themselves. 0: each captures all of it. Their tied tensors must be tied alike.
  std::uint32_t copies = 0;
  auto operator<=>(const Piece&) const = default;
};

}  // namespace ckpt
