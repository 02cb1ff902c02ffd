// Goal:   whatever the nodes and their domains, copies lie where the owner's domain cannot take
// them
//         along, in closed groups, and every node computes the same.
// Method: small cases by hand, then every N up to 24 with every m up to 4 over many mixes of
//         domains, drawn from seeds.
#include "replicate/placement.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "base/random.hpp"

namespace ckpt::replicate {

namespace {

using Indices = std::vector<NodeIndex>;

// "aab": three nodes, two of them in domain a.
std::vector<Node> nodes_of(std::string_view domains) {
  std::vector<Node> nodes;
  for (const char domain : domains) {
    Node node;
    node.name = "node-" + std::to_string(nodes.size());
    node.failure_domain = domain == '-' ? "" : std::string(1, domain);
    nodes.push_back(node);
  }
  return nodes;
}

std::string domain_of(const Node& node) {
  return node.failure_domain.empty() ? node.name : node.failure_domain;
}

std::size_t count_domains(const std::vector<Node>& nodes) {
  std::set<std::string> labels;
  for (const Node& node : nodes) labels.insert(domain_of(node));
  return labels.size();
}

std::size_t largest_domain(const std::vector<Node>& nodes) {
  std::map<std::string, std::size_t> sizes;
  std::size_t largest = 0;
  for (const Node& node : nodes) largest = std::max(largest, ++sizes[domain_of(node)]);
  return largest;
}

std::vector<std::size_t> kept_by(const Placement& placement) {
  std::vector<std::size_t> kept(placement.targets.size(), 0);
  for (const Indices& targets : placement.targets)
    for (const NodeIndex target : targets) ++kept[target];
  return kept;
}

void check_targets(const std::vector<Node>& nodes, const Placement& placement) {
  for (NodeIndex node = 0; node < nodes.size(); ++node) {
    const Indices& targets = placement.targets[node];
    REQUIRE(targets.size() == placement.copies - 1);
    std::set<std::string> domains = {domain_of(nodes[node])};
    for (const NodeIndex target : targets) {
      REQUIRE(target < nodes.size());
      // Another domain than the owner's, and than those of the other copies.
      REQUIRE(domains.insert(domain_of(nodes[target])).second);
    }
  }
}

void check_groups(const std::vector<Node>& nodes, const Placement& placement) {
  std::map<NodeIndex, std::size_t> group_of;
  for (std::size_t group = 0; group < placement.groups.size(); ++group) {
    REQUIRE(placement.groups[group].size() >= placement.copies);
    for (const NodeIndex node : placement.groups[group])
      REQUIRE(group_of.emplace(node, group).second);
  }
  if (placement.copies < 2) {
    REQUIRE(placement.groups.empty());
    return;
  }
  REQUIRE(group_of.size() == nodes.size());
  for (NodeIndex node = 0; node < nodes.size(); ++node) {
    for (const NodeIndex target : placement.targets[node]) {
      REQUIRE(group_of[node] == group_of[target]);
      if (placement.groups[group_of[node]].size() == placement.copies) {
        const Indices& back = placement.targets[target];
        REQUIRE(std::find(back.begin(), back.end(), node) != back.end());
      }
    }
  }
}

}  // namespace

TEST_CASE("placement: two nodes keep each other's copies", "[unit][replicate]") {
  const Placement placement = place_replicas(nodes_of("--"), 2, 0);
  REQUIRE(placement.copies == 2);
  REQUIRE(placement.targets == std::vector<Indices>{{1}, {0}});
  REQUIRE(placement.shortfall.empty());
}

TEST_CASE("placement: an odd node makes one group of three, not a ring", "[unit][replicate]") {
  const Placement placement = place_replicas(nodes_of("-------"), 2, 0);
  REQUIRE(placement.groups.size() == 3);
  std::vector<std::size_t> sizes;
  for (const Indices& group : placement.groups) sizes.push_back(group.size());
  std::sort(sizes.begin(), sizes.end());
  REQUIRE(sizes == std::vector<std::size_t>{2, 2, 3});
  for (const std::size_t kept : kept_by(placement)) REQUIRE(kept == 1);
}

TEST_CASE("placement: pairs are made across racks, not within", "[unit][replicate]") {
  const Placement placement = place_replicas(nodes_of("aaabbb"), 2, 0);
  REQUIRE(placement.groups == std::vector<Indices>{{0, 3}, {1, 4}, {2, 5}});
}

TEST_CASE("placement: one domain only means no peer copies, and says why", "[unit][replicate]") {
  const Placement placement = place_replicas(nodes_of("aaaa"), 2, 0);
  REQUIRE(placement.copies == 1);
  REQUIRE(placement.groups.empty());
  for (const Indices& targets : placement.targets) REQUIRE(targets.empty());
  REQUIRE(placement.shortfall.find("failure domain a") != std::string::npos);
  REQUIRE(place_replicas(nodes_of("-"), 2, 0).shortfall.find("one node") != std::string::npos);
}

TEST_CASE("placement: fewer domains than copies give as many as there are, and say so",
          "[unit][replicate]") {
  const Placement placement = place_replicas(nodes_of("aabb"), 3, 0);
  REQUIRE(placement.copies == 2);
  REQUIRE(placement.shortfall.find("2 failure domains") != std::string::npos);
  check_targets(nodes_of("aabb"), placement);
}

TEST_CASE("placement: without replicas, or without nodes, there is nothing", "[unit][replicate]") {
  for (const std::uint32_t replicas : {0u, 1u}) {
    const Placement placement = place_replicas(nodes_of("ab"), replicas, 0);
    REQUIRE(placement.copies == 1);
    REQUIRE(placement.shortfall.empty());
    REQUIRE(placement.targets == std::vector<Indices>{{}, {}});
  }
  REQUIRE(place_replicas({}, 2, 0).targets.empty());
}

TEST_CASE("placement: a domain of too many nodes is served by all others evenly",
          "[unit][replicate]") {
  const auto nodes = nodes_of("aaaaabc");
  const Placement placement = place_replicas(nodes, 2, 0);
  check_targets(nodes, placement);
  const auto kept = kept_by(placement);
  REQUIRE(kept[5] + kept[6] >= 5);
  REQUIRE(std::max(kept[5], kept[6]) <= 3);
}

TEST_CASE("placement: a replacement in its place in the list moves nobody else",
          "[unit][replicate]") {
  auto nodes = nodes_of("aaabbbcc");
  const Placement before = place_replicas(nodes, 2, 5);
  nodes[4].name = "replacement";
  nodes[4].address = "elsewhere:1";
  const Placement after = place_replicas(nodes, 2, 5);
  REQUIRE(before.targets == after.targets);
}

TEST_CASE("placement: targets are whole, apart, closed and even for any mix of domains",
          "[unit][replicate]") {
  for (std::size_t count = 1; count <= 24; ++count) {
    for (std::uint32_t replicas = 2; replicas <= 4; ++replicas) {
      for (std::uint64_t seed = 0; seed < 40; ++seed) {
        Random random(seed * 1000 + count);
        const std::size_t labels = random.below(count) + 1;
        std::string domains;
        for (std::size_t node = 0; node < count; ++node)
          domains += static_cast<char>('a' + static_cast<char>(random.below(labels)));
        INFO(domains << " m " << replicas << " seed " << seed);
        const auto nodes = nodes_of(domains);
        const Placement placement = place_replicas(nodes, replicas, seed);
        REQUIRE(placement.copies == std::min<std::size_t>(replicas, count_domains(nodes)));
        REQUIRE(placement.shortfall.empty() == (placement.copies == replicas));
        check_targets(nodes, placement);
        check_groups(nodes, placement);
        REQUIRE(placement.targets == place_replicas(nodes, replicas, seed).targets);
        // Where no domain has more than its share, all groups but the last are exact, and even
        // there nobody keeps more than two copies too many.
        if (placement.copies < 2 || largest_domain(nodes) > count / placement.copies) continue;
        const auto kept = kept_by(placement);
        for (std::size_t group = 0; group < placement.groups.size(); ++group) {
          const Indices& members = placement.groups[group];
          const bool is_exact = members.size() == placement.copies;
          REQUIRE((is_exact || group + 1 == placement.groups.size()));
          for (const NodeIndex node : members)
            REQUIRE(kept[node] <= placement.copies - 1 + (is_exact ? 0 : 2));
        }
      }
    }
  }
}

}  // namespace ckpt::replicate
