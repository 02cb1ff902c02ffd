#include "gather/own_shard.hpp"

#include <algorithm>
#include <ckpt/framework.hpp>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "format/piece.hpp"

namespace ckpt::gather {

namespace {

std::vector<std::uint8_t> memory_order_of(const format::TensorPlace& tensor) {
  return tensor.piece ? tensor.piece->order : std::vector<std::uint8_t>();
}

// Another part of one tensor, or the same one in another order of memory.
bool is_other_part(const format::TensorPlace& wanted, const format::TensorPlace& saved) {
  if (!wanted.piece && !saved.piece) return false;
  const bool is_same_tensor = format::global_shape_of(wanted.piece, wanted.shape) ==
                              format::global_shape_of(saved.piece, saved.shape);
  const bool is_same_part = format::region_of(wanted.piece, wanted.shape) ==
                                format::region_of(saved.piece, saved.shape) &&
                            memory_order_of(wanted) == memory_order_of(saved);
  return is_same_tensor && !is_same_part;
}

}  // namespace

bool has_pieces(const format::Layout& layout) {
  return std::ranges::any_of(layout.tensors,
                             [](const auto& tensor) { return tensor.piece.has_value(); });
}

bool lacks_names(const format::Layout& saved, std::span<const std::string_view> wanted) {
  std::unordered_set<std::string_view> there;
  for (const format::TensorPlace& tensor : saved.tensors) there.insert(tensor.name);
  return !std::ranges::all_of(wanted, [&](std::string_view name) { return there.contains(name); });
}

bool lacks_whole_tensors(const format::Layout& wanted, const format::Layout& saved) {
  std::unordered_set<std::string_view> there;
  for (const format::TensorPlace& tensor : saved.tensors) there.insert(tensor.name);
  return std::ranges::any_of(wanted.tensors, [&](const format::TensorPlace& tensor) {
    return !tensor.piece && !tensor.name.starts_with(adapter_prefix) &&
           !there.contains(tensor.name);
  });
}

bool has_other_parts(const format::Layout& wanted, const format::Layout& saved) {
  std::unordered_map<std::string_view, const format::TensorPlace*> there;
  for (const format::TensorPlace& tensor : saved.tensors) there.emplace(tensor.name, &tensor);
  return std::ranges::any_of(wanted.tensors, [&](const format::TensorPlace& tensor) {
    const auto found = there.find(tensor.name);
    return found == there.end() ? tensor.piece.has_value() : is_other_part(tensor, *found->second);
  });
}

bool has_others(const format::Layout& wanted, const format::Layout& saved) {
  std::vector<std::string_view> names;
  for (const format::TensorPlace& tensor : wanted.tensors) names.push_back(tensor.name);
  return lacks_names(saved, names) || has_other_parts(wanted, saved);
}

}  // namespace ckpt::gather
