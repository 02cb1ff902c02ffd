#include "agree/newest_seen.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace ckpt::agree {

std::optional<Step> newest_seen(const ClusterView& view, const History& history,
                                format::StepId restored) {
  if (!view.history_lost.empty()) return std::nullopt;  // Abandoned steps would count.
  std::optional<Step> newest;
  // The same step number in another timeline may be another step: `at` must lead on from ours.
  const auto look_at = [&](format::StepId at) {
    if (is_fenced(history, at) || !leads_to(history, restored, at.timeline)) return;
    if (at.step >= restored.step) newest = std::max(newest, std::optional(at.step));
  };
  for (const format::NodeReport& node : view.reports)
    if (node.newest_seen) look_at(*node.newest_seen);
  const bool is_watched = newest.has_value();
  for (const format::NodeReport& node : view.reports) {
    for (const format::Holding& holding : node.holdings) look_at(holding.id.at);
    for (const format::StepId& at : node.durable) look_at(at);
    if (node.committed) look_at(*node.committed);
  }
  for (const PublishedStep& step : view.published.value_or(std::vector<PublishedStep>{}))
    look_at(step.at);
  CKPT_ASSERT(!newest || *newest >= restored.step);
  // Storage alone never says that training had come no further.
  if (!is_watched && newest == restored.step) return std::nullopt;
  return newest;
}

}  // namespace ckpt::agree
