#include "agree/report_index.hpp"

#include <algorithm>
#include <set>
#include <tuple>

namespace ckpt::agree {

namespace {

// A report that names more is wrong: an entry is kept for each rank.
constexpr std::uint32_t ranks_max = 1'000'000;  // As many as a job may have.

bool is_plausible(const format::Holding& holding) {
  return holding.world_size <= ranks_max && holding.id.rank < holding.world_size;
}

}  // namespace

ReportIndex::ReportIndex(const JobShape& shape) : world_size_(shape.world_size) {
  std::unordered_map<std::string, std::size_t> domains;
  for (const Node& node : shape.nodes) {
    const std::string& label = node.failure_domain.empty() ? node.name : node.failure_domain;
    const std::size_t domain = domains.try_emplace(label, domains.size()).first->second;
    positions_[node.name] = {positions_.size(), domain};
  }
}

ReportIndex::Position ReportIndex::position_of(const std::string& node) const {
  const auto position = positions_.find(node);
  // A node that is not in the list is a domain of its own, behind all others.
  return position != positions_.end() ? position->second
                                      : Position{positions_.size(), positions_.size()};
}

void ReportIndex::add(const format::NodeReport& report) {
  const Position position = position_of(report.node);
  for (const format::Holding& holding : report.holdings) {
    if (!is_plausible(holding)) continue;
    StepHolders& step = steps_[{holding.id.at, holding.world_size}];
    step.holders.resize(holding.world_size);
    auto& holders = step.holders[holding.id.rank];
    Holder holder{report.node, position, holding.digest, holding.is_own, holding.model};
    const auto behind = std::upper_bound(holders.begin(), holders.end(), holder,
                                         [](const Holder& left, const Holder& right) {
                                           return std::tuple(!left.is_own, left.position.number) <
                                                  std::tuple(!right.is_own, right.position.number);
                                         });
    holders.insert(behind, std::move(holder));
    ++step.count;
    update(step, holding.id.rank);
  }
}

void ReportIndex::remove(const format::NodeReport& report) {
  for (const format::Holding& holding : report.holdings) {
    if (!is_plausible(holding)) continue;
    const auto step = steps_.find({holding.id.at, holding.world_size});
    if (step == steps_.end()) continue;
    step->second.count -=
        std::erase_if(step->second.holders[holding.id.rank],
                      [&](const Holder& holder) { return holder.node == report.node; });
    if (step->second.count == 0) {
      steps_.erase(step);
    } else {
      update(step->second, holding.id.rank);
    }
  }
}

void ReportIndex::update(StepHolders& step, std::uint32_t rank) {
  if (!step.copies) {
    step.copies = std::make_shared<StepCopies::List>(step.holders.size());
  } else if (step.copies.use_count() > 1) {  // A reader still has the old list.
    step.copies = std::make_shared<StepCopies::List>(*step.copies);
  }
  std::optional<Copies>& copies = (*step.copies)[rank];
  const std::vector<Holder>& holders = step.holders[rank];
  if (holders.empty()) {
    copies.reset();
    return;
  }
  copies.emplace();
  copies->digest = holders.front().digest;
  copies->has_own = holders.front().is_own;
  copies->model = holders.front().model;
  std::set<std::size_t> domains;
  for (const Holder& holder : holders) {
    const bool is_known =
        std::find(copies->nodes.begin(), copies->nodes.end(), holder.node) != copies->nodes.end();
    if (holder.digest != copies->digest || is_known) continue;
    copies->nodes.push_back(holder.node);
    domains.insert(holder.position.domain);
  }
  copies->domains = domains.size();
}

StepCopies ReportIndex::copies_of(format::StepId at, std::uint32_t world_size) const {
  const auto step = steps_.find({at, world_size});
  if (step != steps_.end()) return StepCopies(step->second.copies);
  return StepCopies(std::make_shared<const StepCopies::List>(world_size));
}

std::vector<format::StepId> ReportIndex::steps() const {
  std::vector<format::StepId> all;
  for (const auto& [key, step] : steps_) {
    if (key.second == world_size_) all.push_back(key.first);
  }
  return all;
}

std::vector<ReportIndex::OfOthers> ReportIndex::steps_of_others() const {
  std::vector<OfOthers> all;
  for (const auto& [key, step] : steps_) {
    if (key.second != world_size_) all.push_back({key.first, key.second});
  }
  return all;
}

}  // namespace ckpt::agree
