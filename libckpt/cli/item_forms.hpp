// ItemForms: the notes of Python's items on tensors that are stored in another form.
//
// A tensor that does not lie in row-major order is stored as it lies, with its dimensions in that
// order, and one of a type that safetensors lacks as its bytes. The structure of the items, a blob
// of each rank, says what each was (bindings/python/libckpt/core/_items.py).
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "gather/batches.hpp"
#include "gather/shard_source.hpp"

namespace ckpt::cli {

inline constexpr const char* items_blob = "libckpt.items";

struct ItemForm {
  std::string type;                  // As its framework calls it: "float32".
  std::vector<std::uint64_t> shape;  // As the trainer had the tensor.
  std::vector<std::uint8_t> order;   // Its dimensions as they are stored; empty: in their order.
};
using ItemForms = std::map<std::string, ItemForm>;  // By the tensor's name.

// `structure`: the blob's content. Errors: corruption.
Result<ItemForms> parse_item_forms(std::span<const std::byte> structure);
// Returns none for a shard without such a blob. Errors: corruption, and those of the source.
Task<ItemForms> read_item_forms(gather::ShardSource& source,
                                std::shared_ptr<const format::ShardRecord> record);

// Gives `source`, which says how the tensor is stored, the order that the trainer saw. Returns the
// shape that it then has: that of the form, or, of a tensor that is stored as its bytes, one
// dimension more. Errors: corruption (the form is of another tensor).
Result<std::vector<std::uint64_t>> take_form(const ItemForm& form, gather::TensorToRead& source);

// The other way round: the structure of one item, a module's state_dict() with these tensors of
// torch. A pair: the key in the item, and the tensor as it is stored.
struct NamedForm {
  std::string key;
  std::string stored_name;
  DType dtype = DType::u8;
  std::span<const std::int64_t> shape;
};
std::string structure_of(std::string_view item, const std::vector<NamedForm>& tensors);

}  // namespace ckpt::cli
