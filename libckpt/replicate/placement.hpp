// Placement: decides which nodes hold whose copies: closed groups across failure domains.
//
// The m nodes of a group keep copies of each other's shards only. So data is lost only with a whole
// group, and half as many pairs of nodes are fatal as in a ring. A remainder makes one group
// larger, whose members choose among themselves. No copy lies in its owner's domain: if one domain
// has too many nodes, groups grow, and the nodes of other domains keep more copies.
//
// A pure function of the list's order and labels: every node computes the same. A replacement that
// takes its predecessor's place in the list also takes its place in the group.
#pragma once

#include <ckpt/options.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ckpt::replicate {

using NodeIndex = std::size_t;  // Into the list of nodes.

struct Placement {
  std::vector<std::vector<NodeIndex>> groups;   // Each node in at most one; members ascending.
  std::vector<std::vector<NodeIndex>> targets;  // By node: the nodes that get its copies.
  std::uint32_t copies = 1;  // For every shard, its own included: min(m, failure domains).
  std::string shortfall;     // For people: why there are fewer copies than wanted, or empty.
};

// `replicas` is m, the number of copies of a shard including its own. A group has two nodes of one
// domain only if too many nodes lie in one domain for anything else. `seed` breaks ties.
Placement place_replicas(std::span<const Node> nodes, std::uint32_t replicas, std::uint64_t seed);

}  // namespace ckpt::replicate
