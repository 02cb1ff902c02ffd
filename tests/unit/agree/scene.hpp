// Scene: a small cluster as its coordinator sees it, built line by line.
#pragma once

#include "agree/cluster_view.hpp"

namespace ckpt::test {

inline Digest digest(std::uint64_t value) {
  return Digest{value, value};
}

// Nodes A, B, ... with rank i on node i.
class Scene {
 public:
  explicit Scene(std::uint32_t nodes) {
    view.shape.job = "job";
    view.shape.world_size = nodes;
    view.shape.save_mem_interval.steps = 1;
    for (std::uint32_t index = 0; index < nodes; ++index) {
      const std::string name(1, static_cast<char>('A' + index));
      view.shape.nodes.push_back({name, "", name + ":1"});
      view.expected.push_back(name);
      format::NodeReport report;
      report.job = "job";
      report.node = name;
      format::RankReport rank;
      rank.rank = index;
      rank.session = 100 + index;
      report.ranks.push_back(rank);
      view.reports.push_back(report);
    }
    view.members = agree::members_digest(view.shape);
    view.published.emplace();
    view.all_live = true;
  }

  // `node` holds a copy of `rank` at (timeline, step).
  void hold(std::size_t node, std::uint64_t timeline, std::uint64_t step, std::uint32_t rank,
            std::uint64_t content = 7) {
    format::Holding holding;
    holding.id = {{timeline, Step{step}}, rank};
    holding.digest = digest(content + rank);
    holding.world_size = view.shape.world_size;
    holding.is_own = rank == node;
    view.reports[node].holdings.push_back(holding);
  }
  // Every rank's shard on its own node and on the next one.
  void hold_everywhere(std::uint64_t timeline, std::uint64_t step) {
    const auto nodes = static_cast<std::uint32_t>(view.reports.size());
    for (std::uint32_t rank = 0; rank < nodes; ++rank) {
      hold(rank, timeline, step, rank);
      if (nodes > 1) hold((rank + 1) % nodes, timeline, step, rank);
    }
  }
  void lose(std::size_t node) {
    std::erase(view.expected, view.reports[node].node);
    view.reports.erase(view.reports.begin() + static_cast<std::ptrdiff_t>(node));
    view.all_live = false;
  }
  format::RankReport& rank(std::size_t index) { return view.reports[index].ranks.front(); }
  // All ranks train on `timeline` and have seen `step`.
  void train(std::uint64_t timeline, std::uint64_t step) {
    for (format::NodeReport& report : view.reports) {
      for (format::RankReport& rank : report.ranks) {
        rank.phase = format::StartPhase::running;
        rank.timeline = timeline;
        rank.last_seen = Step{step};
      }
    }
  }
  void all_ask(std::optional<Step> wanted = std::nullopt) {
    for (format::NodeReport& report : view.reports) {
      for (format::RankReport& rank : report.ranks) {
        rank.phase = format::StartPhase::asks;
        rank.wanted = wanted;
      }
    }
  }

  agree::ClusterView view;
};

}  // namespace ckpt::test
