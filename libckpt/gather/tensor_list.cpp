#include "gather/tensor_list.hpp"

#include <algorithm>
#include <map>

#include "format/piece.hpp"
#include "plan/region.hpp"

namespace ckpt::gather {

namespace {

bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}

// Takes the digits from the front, and returns them without zeros at the front.
std::string_view take_number(std::string_view& text) {
  std::size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  std::string_view digits = text.substr(0, end);
  text.remove_prefix(end);
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  return digits;
}

// Numbers in names are compared by their value: "layer.2" is before "layer.10". Returns less than
// 0, 0, or more than 0.
int compare(std::string_view one, std::string_view other) {
  while (!one.empty() && !other.empty()) {
    if (is_digit(one.front()) && is_digit(other.front())) {
      const std::string_view left = take_number(one);
      const std::string_view right = take_number(other);
      if (left.size() != right.size()) return left.size() < right.size() ? -1 : 1;
      if (const int order = left.compare(right); order != 0) return order;
      continue;
    }
    const auto left = static_cast<unsigned char>(one.front());
    const auto right = static_cast<unsigned char>(other.front());
    if (left != right) return left < right ? -1 : 1;
    one.remove_prefix(1);
    other.remove_prefix(1);
  }
  return one.empty() && other.empty() ? 0 : one.empty() ? -1 : 1;
}

void add(ListedTensor& tensor, std::string_view name, std::uint32_t rank,
         const format::ShardRecord& record, const format::TensorPlace& place) {
  auto shape = format::global_shape_of(place.piece, place.shape);
  if (tensor.parts.empty()) {
    tensor.name = name;
    tensor.dtype = place.dtype;
    tensor.shape = std::move(shape);
    tensor.alias_of = place.alias_of;
    const format::Member& member = record.layout.members[place.member];
    if (member.kind == format::MemberKind::torch) tensor.archive_file = member.file_name;
  } else {
    tensor.is_alike = tensor.is_alike && tensor.dtype == place.dtype && tensor.shape == shape;
    if (tensor.alias_of != place.alias_of) tensor.alias_of.clear();
  }
  tensor.parts.push_back({rank, &place});
  if (place.name != name) tensor.part_names.push_back(place.name);
}

}  // namespace

std::vector<std::uint32_t> ListedTensor::whole_in() const {
  std::vector<std::uint32_t> ranks;
  for (const HeldPart& part : parts)
    if (!part.place->piece && part.place->extent.bytes > 0) ranks.push_back(part.rank);
  return ranks;
}

std::uint64_t ListedTensor::bytes() const {
  return plan::count_of(shape) * size_of(dtype);
}

bool is_before(std::string_view one, std::string_view other) {
  const int order = compare(one, other);
  return order != 0 ? order < 0 : one < other;
}

std::vector<ListedTensor> list_tensors(const KnownShards& shards) {
  std::map<std::string_view, ListedTensor> by_name;
  for (std::uint32_t rank = 0; rank < shards.shard_count(); ++rank) {
    const format::ShardRecord& record = shards.record(rank);
    for (const format::TensorPlace& place : record.layout.tensors) {
      const auto name = format::tensor_name_of(place.name, place.piece, place.shape);
      add(by_name[name], name, rank, record, place);
    }
  }
  std::vector<ListedTensor> list;
  list.reserve(by_name.size());
  for (auto& [name, tensor] : by_name) {
    std::ranges::sort(tensor.part_names);
    tensor.part_names.erase(std::ranges::unique(tensor.part_names).begin(),
                            tensor.part_names.end());
    list.push_back(std::move(tensor));
  }
  std::ranges::sort(list, is_before, &ListedTensor::name);
  return list;
}

}  // namespace ckpt::gather
