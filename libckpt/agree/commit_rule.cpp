#include "agree/commit_rule.hpp"

#include <algorithm>
#include <set>

#include "base/assert.hpp"

namespace ckpt::agree {

std::size_t required_copies(const ClusterView& view) {
  const std::size_t domains = domain_count(view.shape, view.expected);
  return std::max<std::size_t>(1, std::min<std::size_t>(view.shape.replicas, domains));
}

namespace {

std::set<format::StepId> held_steps(const ClusterView& view, std::uint64_t timeline) {
  std::set<format::StepId> steps;
  for (const format::StepId& at : held_steps(view)) {
    if (at.timeline == timeline) steps.insert(at);
  }
  return steps;
}

bool is_safe(const ClusterView& view, format::StepId at, std::size_t copies_needed) {
  const auto copies = copies_of(view, at);
  CKPT_ASSERT(copies.size() > 0);  // Without ranks all would be safe.
  return std::all_of(copies.begin(), copies.end(), [&](const std::optional<Copies>& shard) {
    return shard && shard->domains >= copies_needed;
  });
}

}  // namespace

std::optional<format::StepId> newest_committable(const ClusterView& view, std::uint64_t timeline) {
  const std::set<format::StepId> steps = held_steps(view, timeline);
  const std::size_t copies_needed = required_copies(view);
  CKPT_ASSERT(copies_needed > 0);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (is_safe(view, *step, copies_needed)) return *step;
  }
  return std::nullopt;
}

std::vector<format::StepId> given_up(const ClusterView& view, std::uint64_t timeline,
                                     std::optional<format::StepId> committed) {
  std::set<format::StepId> candidates = held_steps(view, timeline);
  const std::vector<RankView> ranks = ranks_of(view);
  for (const RankView& rank : ranks) {
    if (rank.report == nullptr) continue;
    for (const format::StepId& at : rank.report->filling) {
      if (at.timeline == timeline) candidates.insert(at);
    }
  }
  std::vector<format::StepId> dropped;
  for (const format::StepId& at : candidates) {
    if (committed && at <= *committed) continue;
    const auto copies = copies_of(view, at);
    CKPT_ASSERT(copies.size() == view.shape.world_size);
    const bool is_missed = std::any_of(ranks.begin(), ranks.end(), [&](const RankView& rank) {
      if (rank.report == nullptr || rank.report->timeline != timeline) return false;
      const auto& filling = rank.report->filling;
      // A rank that closes captures nothing more, and its daemon may be too new to know its steps.
      const bool went_past =
          rank.report->is_closing || (rank.report->last_seen && *rank.report->last_seen >= at.step);
      // A replica alone is not enough: only the own copy is sent on, so the step would never be
      // safe, and would hold Slots that newer steps need.
      const auto& shard = copies[rank.report->rank];
      const bool has_it = (shard && shard->has_own) ||
                          std::find(filling.begin(), filling.end(), at) != filling.end();
      return went_past && !has_it;
    });
    if (is_missed) dropped.push_back(at);
  }
  return dropped;
}

}  // namespace ckpt::agree
