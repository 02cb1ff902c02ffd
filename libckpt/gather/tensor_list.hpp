// TensorList: the tensors of a step by name, with who has which part of each.
#pragma once

#include <ckpt/tensor.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gather/known_shards.hpp"

namespace ckpt::gather {

struct HeldPart {
  std::uint32_t rank = 0;
  const format::TensorPlace* place = nullptr;  // In the record of the rank.
};

struct ListedTensor {
  std::string name;
  DType dtype = DType::u8;           // The first part's,
  std::vector<std::uint64_t> shape;  // and so the whole tensor's shape, as it is stored.
  std::vector<HeldPart> parts;       // By rank.
  std::string alias_of;              // Set if every rank that has the name says the same.
  bool is_alike = true;              // All parts are of this type and this whole shape.
  std::string archive_file;          // The torch member that it is an entry of; empty: none.
  // The names of parts that have names of their own (format::tensor_name_of), ascending.
  std::vector<std::string> part_names;

  // Nothing is wanted from parts without elements.
  std::vector<std::uint32_t> whole_in() const;
  // Nobody says that whole tensors of several ranks are copies of one another.
  bool is_each_ranks_own() const { return whole_in().size() > 1; }
  std::uint64_t bytes() const;
};

// In the order that people expect: `layers.2` before `layers.10`. `shards` outlives the list.
std::vector<ListedTensor> list_tensors(const KnownShards& shards);

// Compares texts by their words, and by the values of the numbers in them. A total order.
bool is_before(std::string_view one, std::string_view other);

}  // namespace ckpt::gather
