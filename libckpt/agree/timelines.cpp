#include "agree/timelines.hpp"

#include <algorithm>
#include <map>

#include "format/run_files.hpp"

namespace ckpt::agree {

bool is_fenced(const History& history, format::StepId at) {
  return format::is_abandoned(history, at);
}

History merge(const History& first, const History& second) {
  std::map<std::uint64_t, format::TimelineStart> by_timeline;
  for (const History* history : {&first, &second}) {
    for (const format::TimelineStart& start : *history) by_timeline.emplace(start.timeline, start);
  }
  History merged;
  for (const auto& [timeline, start] : by_timeline) merged.push_back(start);
  return merged;
}

std::vector<format::RestoreCount> merge(const std::vector<format::RestoreCount>& first,
                                        const std::vector<format::RestoreCount>& second) {
  std::map<format::StepId, std::uint32_t> highest;
  for (const auto* counts : {&first, &second}) {
    for (const format::RestoreCount& count : *counts) {
      highest[count.at] = std::max(highest[count.at], count.times);
    }
  }
  std::vector<format::RestoreCount> merged;
  for (const auto& [at, times] : highest) merged.push_back({at, times});
  return merged;
}

std::vector<format::RestoreCount> fill_in(std::vector<format::RestoreCount> ours,
                                          const std::vector<format::RestoreCount>& theirs) {
  for (const format::RestoreCount& count : theirs) {
    const auto is_same = [&](const format::RestoreCount& it) { return it.at == count.at; };
    if (std::none_of(ours.begin(), ours.end(), is_same)) ours.push_back(count);
  }
  std::sort(ours.begin(), ours.end());
  return ours;
}

bool is_suspect(const std::vector<format::RestoreCount>& counts, format::StepId at) {
  return std::any_of(counts.begin(), counts.end(), [&](const format::RestoreCount& count) {
    return count.at == at && count.times >= restores_without_progress_max;
  });
}

std::optional<format::StepId> base_of(const History& history, std::uint64_t timeline) {
  for (const format::TimelineStart& start : history) {
    if (start.timeline == timeline && start.base) return start.base;
  }
  return std::nullopt;
}

bool leads_to(const History& history, format::StepId at, std::uint64_t timeline) {
  if (at.timeline == timeline) return true;
  for (auto base = base_of(history, timeline); base; base = base_of(history, base->timeline)) {
    if (at.timeline == base->timeline) return at.step <= base->step;
    if (base->timeline >= timeline) return false;  // No history that a coordinator wrote.
    timeline = base->timeline;
  }
  return false;
}

std::uint64_t newest_timeline(const History& history) {
  std::uint64_t newest = 0;
  for (const format::TimelineStart& start : history) newest = std::max(newest, start.timeline);
  return newest;
}

}  // namespace ckpt::agree
