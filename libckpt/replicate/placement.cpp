#include "replicate/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/assert.hpp"
#include "base/random.hpp"

namespace ckpt::replicate {

namespace {

using Group = std::vector<NodeIndex>;
using Groups = std::vector<Group>;

const std::string& domain_of(const Node& node) {
  return node.failure_domain.empty() ? node.name : node.failure_domain;
}

// All nodes, domain by domain, the largest first. Two nodes that stand `count` apart in this order
// share no domain, if every domain has at most `count` nodes.
Group sort_by_domain(std::span<const Node> nodes, std::uint64_t seed) {
  std::map<std::string, Group> domains;
  for (NodeIndex index = 0; index < nodes.size(); ++index)
    domains[domain_of(nodes[index])].push_back(index);
  std::vector<Group> lists;
  for (auto& [label, members] : domains) {
    if (seed != 0) {
      const auto rank = [seed](NodeIndex index) { return Random(seed + index).next(); };
      std::sort(members.begin(), members.end(), [&](NodeIndex left, NodeIndex right) {
        return std::pair(rank(left), left) < std::pair(rank(right), right);
      });
    }
    lists.push_back(std::move(members));
  }
  std::sort(lists.begin(), lists.end(), [](const Group& left, const Group& right) {
    if (left.size() != right.size()) return left.size() > right.size();
    return *std::min_element(left.begin(), left.end()) <
           *std::min_element(right.begin(), right.end());
  });
  Group order;
  for (const Group& list : lists) order.insert(order.end(), list.begin(), list.end());
  return order;
}

std::size_t count_domains(std::span<const Node> nodes, const Group& members) {
  std::set<std::string> labels;
  for (const NodeIndex index : members) labels.insert(domain_of(nodes[index]));
  return labels.size();
}

bool is_spread(std::span<const Node> nodes, const Groups& groups, std::size_t copies) {
  return std::all_of(groups.begin(), groups.end(),
                     [&](const Group& group) { return count_domains(nodes, group) >= copies; });
}

// Deals the first `dealt` nodes of the order round robin, and gives the rest to the last group.
Groups deal(const Group& order, std::size_t group_count, std::size_t dealt) {
  Groups groups(group_count);
  for (std::size_t place = 0; place < order.size(); ++place)
    groups[place < dealt ? place % group_count : group_count - 1].push_back(order[place]);
  return groups;
}

Groups make_groups(std::span<const Node> nodes, const Group& order, std::size_t copies) {
  std::size_t group_count = order.size() / copies;
  Groups groups = deal(order, group_count, group_count * copies);
  if (is_spread(nodes, groups, copies)) return groups;
  // One domain has more nodes than there are groups. Fewer, larger groups then make it as even as
  // possible.
  for (; group_count > 1; --group_count) {
    groups = deal(order, group_count, order.size());
    if (is_spread(nodes, groups, copies)) return groups;
  }
  return deal(order, 1, order.size());
}

// The members' places in the group. Members that share a domain with most others have the fewest
// choices, so they choose first.
std::vector<std::size_t> least_free_first(std::span<const Node> nodes, const Group& group) {
  std::map<std::string, std::size_t> sizes;
  for (const NodeIndex index : group) ++sizes[domain_of(nodes[index])];
  std::vector<std::size_t> places(group.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::sort(places.begin(), places.end(), [&](std::size_t left, std::size_t right) {
    const std::size_t left_size = sizes[domain_of(nodes[group[left]])];
    const std::size_t right_size = sizes[domain_of(nodes[group[right]])];
    return left_size != right_size ? left_size > right_size : left < right;
  });
  return places;
}

// Each member's targets, in domains other than its own and each other's. Among these, first the
// members with the fewest copies so far, then the next in the group.
void choose_targets(std::span<const Node> nodes, const Group& group, std::size_t copies,
                    Placement& placement) {
  std::vector<std::size_t> kept(group.size(), 0);
  for (const std::size_t member : least_free_first(nodes, group)) {
    std::set<std::string> used = {domain_of(nodes[group[member]])};
    auto& targets = placement.targets[group[member]];
    while (targets.size() + 1 < copies) {
      std::size_t best = group.size();
      for (std::size_t distance = 1; distance < group.size(); ++distance) {
        const std::size_t other = (member + distance) % group.size();
        if (used.contains(domain_of(nodes[group[other]]))) continue;
        if (best == group.size() || kept[other] < kept[best]) best = other;
      }
      CKPT_ASSERT(best < group.size());
      used.insert(domain_of(nodes[group[best]]));
      ++kept[best];
      targets.push_back(group[best]);
    }
  }
}

std::string explain_shortfall(std::span<const Node> nodes, std::size_t domains,
                              std::uint32_t replicas) {
  if (nodes.size() == 1)
    return fmt::format("{} copies were asked for, and the job has one node: no copies on peers",
                       replicas);
  if (domains == 1)
    return fmt::format(
        "{} copies were asked for, and all {} nodes lie in failure domain {}: no "
        "copies on peers",
        replicas, nodes.size(), domain_of(nodes.front()));
  return fmt::format("{} copies were asked for, and the job has {} failure domains: {} copies",
                     replicas, domains, domains);
}

}  // namespace

Placement place_replicas(std::span<const Node> nodes, std::uint32_t replicas, std::uint64_t seed) {
  Placement placement;
  placement.targets.resize(nodes.size());
  if (nodes.empty() || replicas < 2) return placement;
  const Group order = sort_by_domain(nodes, seed);
  const std::size_t domains = count_domains(nodes, order);
  const std::size_t copies = std::min<std::size_t>(replicas, domains);
  placement.copies = static_cast<std::uint32_t>(copies);
  if (copies < replicas) placement.shortfall = explain_shortfall(nodes, domains, replicas);
  if (copies < 2) return placement;
  placement.groups = make_groups(nodes, order, copies);
  for (const Group& group : placement.groups) choose_targets(nodes, group, copies, placement);
  for (Group& group : placement.groups) std::sort(group.begin(), group.end());
  for (Group& targets : placement.targets) std::sort(targets.begin(), targets.end());
  return placement;
}

}  // namespace ckpt::replicate
