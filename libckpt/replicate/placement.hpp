// Placement: who holds whose copies: closed groups of nodes that lie in different failure domains.
//
// A group of m keeps copies of each other's shards and of nobody else's, so that only the loss of
// whole groups loses anything: half as many fatal pairs as a ring has. What does not divide makes
// one larger group, whose members choose among themselves. No copy lies in its owner's domain:
// where one domain has too many nodes, groups grow and the nodes of the others keep more copies.
//
// A pure function of the list's order and labels: every node computes the same, and a replacement
// that takes its predecessor's place in the list takes its place in the group.
#pragma once

#include <ckpt/options.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ckpt::replicate {

using NodeIndex = std::size_t;  // In the list of nodes that was given.

struct Placement {
  std::vector<std::vector<NodeIndex>> groups;   // Each node in at most one; members ascending.
  std::vector<std::vector<NodeIndex>> targets;  // By node: where its copies go.
  std::uint32_t copies = 1;  // That every shard gets, its own included: min(m, failure domains).
  std::string shortfall;     // Empty, or why there are fewer than asked for; for people.
};

// `replicas` is m: copies of a shard, the own one included. The same domain is used twice in a
// group only where too many nodes lie in one domain for anything else. `seed` decides between
// equals.
Placement place_replicas(std::span<const Node> nodes, std::uint32_t replicas, std::uint64_t seed);

}  // namespace ckpt::replicate
