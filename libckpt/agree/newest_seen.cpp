#include "agree/newest_seen.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace ckpt::agree {

namespace {

// Whether a step of this number leads on from `restored`, and was not abandoned, whichever of the
// known timelines it is of: what is on storage there, and cannot be read, does not say.
bool leads_on(const History& history, format::StepId restored, Step step) {
  return std::ranges::all_of(history, [&](const format::TimelineStart& start) {
    if (start.base && start.base->step >= step) return true;  // It has no step of this number.
    const format::StepId at{start.timeline, step};
    return !is_fenced(history, at) && leads_to(history, restored, at.timeline);
  });
}

}  // namespace

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
  for (const format::StepId& at : view.damaged_steps) look_at(at);
  const auto look_at_name = [&](Step step) {
    const bool is_newer = step > restored.step && (!newest || step > *newest);
    if (is_newer && leads_on(history, restored, step)) newest = step;
  };
  const std::optional<Step>& damaged = view.newest_damaged;
  const auto is_it = [&](format::StepId at) { return at.step == damaged; };
  if (damaged && std::ranges::none_of(view.damaged_steps, is_it)) look_at_name(*damaged);
  for (const UnreadableStep& step : view.unreadable_steps) look_at_name(step.step);
  CKPT_ASSERT(!newest || *newest >= restored.step);
  // Storage alone never says that training had come no further.
  if (!is_watched && newest == restored.step) return std::nullopt;
  return newest;
}

}  // namespace ckpt::agree
