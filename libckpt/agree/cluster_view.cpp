#include "agree/cluster_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace ckpt::agree {

Digest members_digest(const JobShape& shape) {
  std::string text = fmt::format("{}\n{}\n{}\n", shape.job, shape.world_size, shape.replicas);
  for (const Node& node : shape.nodes) {
    text += fmt::format("{}\n{}\n{}\n", node.name, node.failure_domain, node.address);
  }
  return digest_of(std::as_bytes(std::span(text)));
}

std::string domain_of(const JobShape& shape, const std::string& node) {
  for (const Node& member : shape.nodes) {
    if (member.name == node && !member.failure_domain.empty()) return member.failure_domain;
  }
  return node;
}

std::vector<RankView> ranks_of(const ClusterView& view) {
  std::vector<RankView> ranks(view.shape.world_size);
  for (const format::NodeReport& node : view.reports) {
    for (const format::RankReport& report : node.ranks) {
      if (report.rank >= ranks.size()) continue;
      RankView& rank = ranks[report.rank];
      rank.is_doubled = rank.report != nullptr;
      rank.report = &report;
      rank.node = &node;
    }
  }
  return ranks;
}

bool has_trainers(const ClusterView& view) {
  return std::any_of(view.reports.begin(), view.reports.end(),
                     [](const format::NodeReport& node) { return !node.ranks.empty(); });
}

std::vector<std::optional<Copies>> copies_of(const ClusterView& view, format::StepId at) {
  std::vector<std::optional<Copies>> copies(view.shape.world_size);
  const auto collect = [&](bool own_only) {
    for (const format::NodeReport& node : view.reports) {
      for (const format::Holding& holding : node.holdings) {
        if (holding.id.at != at || holding.id.rank >= copies.size()) continue;
        if (holding.world_size != view.shape.world_size || (own_only && !holding.is_own)) continue;
        auto& entry = copies[holding.id.rank];
        if (!entry) entry = Copies{holding.digest, {}, holding.is_own};
        if (entry->digest != holding.digest) continue;
        std::set<std::string> names(entry->nodes.begin(), entry->nodes.end());
        if (names.insert(node.node).second) entry->nodes.push_back(node.node);
      }
    }
  };
  collect(true);
  collect(false);
  return copies;
}

DamagedShards damaged_shards(const ClusterView& view) {
  DamagedShards damaged;
  for (const format::NodeReport& node : view.reports) {
    for (const format::Damage& damage : node.damaged) {
      Errc& code = damaged[damage.id.at][damage.id.rank];
      if (code != Errc::corruption) code = damage.code;
    }
  }
  return damaged;
}

std::size_t domain_count(const JobShape& shape, const std::vector<std::string>& nodes) {
  std::set<std::string> domains;
  for (const std::string& node : nodes) domains.insert(domain_of(shape, node));
  return domains.size();
}

}  // namespace ckpt::agree
