#include "agree/cluster_view.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace ckpt::agree {

std::vector<RankView> ranks_of(const ClusterView& view) {
  std::vector<RankView> ranks(view.shape.world_size);
  for (const format::NodeReport& node : view.reports) {
    for (const format::RankReport& report : node.ranks) {
      if (report.rank >= ranks.size()) continue;
      RankView& rank = ranks[report.rank];
      // A trainer that has closed is reported until all have: it gives way to one on another node.
      if (rank.report != nullptr && !rank.report->is_closing && report.is_closing) continue;
      rank.is_doubled = rank.report != nullptr && rank.report->is_closing == report.is_closing;
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

bool has_committed(const ClusterView& view) {
  return std::ranges::any_of(view.reports,
                             [](const auto& node) { return node.committed.has_value(); });
}

namespace {

std::shared_ptr<const ReportIndex> index_of(const ClusterView& view) {
  if (view.index) return view.index;
  const auto index = std::make_shared<ReportIndex>(view.shape);
  for (const format::NodeReport& report : view.reports) index->add(report);
  return index;
}

}  // namespace

StepCopies copies_of(const ClusterView& view, format::StepId at, std::uint32_t saved_by) {
  return index_of(view)->copies_of(at, saved_by);
}

StepCopies copies_of(const ClusterView& view, format::StepId at) {
  return copies_of(view, at, view.shape.world_size);
}

StepCopies copies_of_any(const ClusterView& view, format::StepId at) {
  const auto index = index_of(view);
  StepCopies copies = index->copies_of(at, view.shape.world_size);
  const bool is_held =
      std::any_of(copies.begin(), copies.end(),
                  [](const std::optional<Copies>& shard) { return shard.has_value(); });
  if (is_held) return copies;
  for (const ReportIndex::OfOthers& other : index->steps_of_others()) {
    if (other.at == at) return index->copies_of(at, other.world_size);
  }
  return copies;
}

std::vector<ReportIndex::OfOthers> held_steps_of_others(const ClusterView& view) {
  return index_of(view)->steps_of_others();
}

std::vector<format::StepId> held_steps(const ClusterView& view) {
  return index_of(view)->steps();
}

namespace {

void add_damage(DamagedShards& damaged, const format::NodeReport& node) {
  for (const format::Damage& damage : node.damaged) {
    Errc& code = damaged[damage.id.at][damage.id.rank];
    if (code != Errc::corruption) code = damage.code;
  }
}

}  // namespace

DamagedShards damaged_shards(const ClusterView& view) {
  DamagedShards damaged;
  for (const format::NodeReport& node : view.reports) add_damage(damaged, node);
  return damaged;
}

DamagedShards damaged_for_restore(const ClusterView& view) {
  const auto has_rank = [](const format::NodeReport& node) { return !node.ranks.empty(); };
  if (std::ranges::none_of(view.reports, has_rank)) return damaged_shards(view);
  DamagedShards damaged;
  for (const format::NodeReport& node : view.reports)
    if (has_rank(node)) add_damage(damaged, node);
  return damaged;
}

std::size_t domain_count(const JobShape& shape, const std::vector<std::string>& nodes) {
  std::unordered_map<std::string_view, std::string_view> labels;
  for (const Node& member : shape.nodes) {
    if (!member.failure_domain.empty()) labels.emplace(member.name, member.failure_domain);
  }
  std::unordered_set<std::string_view> domains;
  for (const std::string& node : nodes) {
    const auto label = labels.find(node);
    domains.insert(label != labels.end() ? label->second : std::string_view(node));
  }
  return domains.size();
}

}  // namespace ckpt::agree
