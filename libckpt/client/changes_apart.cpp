#include "client/changes_apart.hpp"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <utility>

#include "base/assert.hpp"
#include "base/units.hpp"

namespace ckpt::client {

namespace {

// Group: tensors that lie side by side in the file, in the order in which they were given.
struct Group {
  std::size_t element_bytes = 0;  // 0 for tensors of whole pages.
  bool changes = false;
  auto operator<=>(const Group&) const = default;
};

Group group_of(const format::TensorSpec& spec, bool changes) {
  const std::uint64_t bytes = format::tensor_bytes(spec.dtype, spec.shape).value_or(0);
  return {bytes % page_bytes == 0 ? std::size_t{0} : size_of(spec.dtype), changes};
}

// The Layout places small tensors by falling element size, so what changes can choose its place
// only within one size. From the last size backwards, it touches what changes behind it.
std::vector<Group> groups_in_file_order(const std::map<Group, std::vector<std::size_t>>& groups) {
  std::vector<Group> backwards;
  bool changes_last = true;  // The blobs follow, which change.
  for (const std::size_t element_bytes : std::array<std::size_t, 4>{1, 2, 4, 8}) {
    for (const bool changes : {changes_last, !changes_last})
      if (groups.contains({element_bytes, changes})) backwards.push_back({element_bytes, changes});
    if (!backwards.empty()) changes_last = backwards.back().changes;
  }
  backwards.insert(backwards.end(), {{0, false}, {0, true}});
  std::ranges::reverse(backwards);
  return backwards;
}

}  // namespace

std::vector<format::TensorSpec> with_changes_apart(std::vector<format::TensorSpec> specs,
                                                   const Changes& changes) {
  CKPT_ASSERT(changes.size() == specs.size());
  std::map<Group, std::vector<std::size_t>> groups;
  std::vector<std::size_t> order;
  for (std::size_t index = 0; index < specs.size(); ++index) {
    const bool is_in_file = specs[index].alias_of.empty() && specs[index].archive.empty();
    if (is_in_file) groups[group_of(specs[index], changes[index])].push_back(index);
    if (!is_in_file) order.push_back(index);  // Others decide where it lies.
  }
  for (const Group& group : groups_in_file_order(groups))
    if (const auto found = groups.find(group); found != groups.end())
      order.insert(order.end(), found->second.begin(), found->second.end());
  CKPT_ASSERT(order.size() == specs.size());
  std::vector<format::TensorSpec> ordered;
  ordered.reserve(specs.size());
  for (const std::size_t index : order) ordered.push_back(std::move(specs[index]));
  return ordered;
}

}  // namespace ckpt::client
