#include "agree/copy_rule.hpp"

#include <algorithm>

namespace ckpt::agree {

namespace {

const DatedStep* newest_of(std::span<const DatedStep> steps) {
  const auto newest = std::ranges::max_element(steps, {}, &DatedStep::at);
  return newest == steps.end() ? nullptr : &*newest;
}

// Clocks of two nodes differ, and may be set back: a copy too many does no harm.
bool is_time(const DatedStep& newest, const DatedStep& last, std::chrono::seconds time) {
  if (newest.created_unix_seconds < last.created_unix_seconds) return true;
  const std::uint64_t passed = newest.created_unix_seconds - last.created_unix_seconds;
  return passed >= static_cast<std::uint64_t>(time.count());
}

}  // namespace

std::optional<format::StepId> step_to_copy(const CopyView& view, const CopyPace& pace) {
  const DatedStep* const newest = newest_of(view.first);
  const DatedStep* const last = newest_of(view.second);
  if (newest == nullptr) return {};
  if (last != nullptr && newest->at <= last->at) return {};
  if (last == nullptr || view.is_last) return newest->at;
  if (pace.steps == 0)
    return is_time(*newest, *last, pace.time) ? std::optional(newest->at) : std::nullopt;
  const auto is_newer = [&](const DatedStep& step) { return step.at > last->at; };
  const auto newer = static_cast<std::uint64_t>(std::ranges::count_if(view.first, is_newer));
  const bool is_due = std::max(newer, view.published_since) >= pace.steps;
  return is_due ? std::optional(newest->at) : std::nullopt;
}

}  // namespace ckpt::agree
