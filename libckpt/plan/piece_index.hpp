// PieceIndex: every piece of every tensor of one step, by name, and who holds it.
//
// A piece is a region of a tensor whose bytes lie in one stretch at a holder: a Slot here or at a
// peer, or a file. Several holders may have the same piece, or regions that overlap. A job has
// millions of pieces, so that each takes few bytes here: regions are numbers in one pool.
//
// Memory: 40 bytes for each piece, and 16 for each dimension of a box or 16 for a flat range: less
//         than 100 up to three dimensions. Some 150 for each name.
// Invariants: all pieces of a name have its type and its shape, and lie inside of it.
#pragma once

#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "plan/region.hpp"

namespace ckpt::plan {

struct HeldPiece {
  std::string_view name;
  DType dtype = DType::u8;
  Shape shape;  // The whole tensor's shape.
  Region region;
  std::vector<std::uint8_t> order;  // A box's dimensions, slowest first; empty: row-major.
  std::uint32_t holder = 0;
  std::uint64_t offset = 0;  // Where its first byte lies in the holder's bytes.
};

class PieceIndex {
 public:
  struct Tensor {
    std::string name;
    DType dtype = DType::u8;
    std::vector<std::uint64_t> shape;
  };
  // One holder's part of a tensor.
  struct HeldRegion {
    Region region;
    std::span<const std::uint8_t> order;
    std::uint32_t holder = 0;
    std::uint64_t offset = 0;
  };

  // Errors: invalid_argument (outside of the tensor; an order that is none; over a limit),
  // corruption (another holder has the name with another type or shape). The text names the tensor.
  Status add(const HeldPiece& piece);
  // Whether add() would take the piece if it were the first. Errors: invalid_argument.
  static Status check(const HeldPiece& piece);
  void finish();  // Call once after the last add() and before the calls below.

  const Tensor* find(std::string_view name) const;
  // Returns the parts that may overlap `range`, in an order that does not depend on the order of
  // the add() calls.
  std::vector<HeldRegion> overlapping(const Tensor& tensor, const FlatRange& range) const;
  std::size_t size() const { return count_; }
  std::size_t bytes_used() const;

 private:
  struct Entry {
    std::uint64_t begin = 0;  // From its first element to behind its last one, in the flattened
    std::uint64_t end = 0;    // tensor.
    std::uint64_t offset = 0;
    std::uint64_t numbers = 0;  // Where its region begins in the pool.
    std::uint32_t holder = 0;
    std::uint16_t order = 0;  // In `orders_`.
    bool is_range = false;
  };
  struct Known {
    Tensor tensor;
    std::vector<Entry> entries;
    std::uint64_t longest = 0;  // From a first element to behind the last one.
  };

  Result<Known*> known(const HeldPiece& piece);
  Result<std::uint16_t> number_of(const std::vector<std::uint8_t>& order);
  Region region_of(const Entry& entry, std::size_t dimensions) const;

  std::unordered_map<std::string, Known> tensors_;
  std::vector<std::uint64_t> numbers_;
  std::vector<std::vector<std::uint8_t>> orders_{{}};  // The first one: row-major.
  std::size_t count_ = 0;
  bool is_finished_ = false;
};

}  // namespace ckpt::plan
