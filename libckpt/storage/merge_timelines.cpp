#include "storage/merge_timelines.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "storage/run_directory.hpp"

namespace ckpt::storage {

Result<format::Timelines> merge(const format::Timelines& one, const format::Timelines& other) {
  format::Timelines merged = one;
  for (const format::TimelineStart& start : other.history) {
    const auto known =
        std::ranges::find(merged.history, start.timeline, &format::TimelineStart::timeline);
    if (known == merged.history.end()) {
      merged.history.push_back(start);
    } else if (known->base != start.base) {
      return fail(Errc::invalid_argument,
                  fmt::format("the histories differ about timeline {}: a job went on from both "
                              "directories",
                              start.timeline));
    }
  }
  std::ranges::sort(merged.history, {}, &format::TimelineStart::timeline);
  if (one.history.empty()) merged.restore_counts = other.restore_counts;
  return merged;
}

format::Timelines without_abandoning(format::Timelines timelines, format::StepId at) {
  const auto abandons = [&](const format::TimelineStart& start) {
    return format::is_abandoned({start}, at);
  };
  std::erase_if(timelines.history, abandons);
  const auto own =
      std::ranges::find(timelines.history, at.timeline, &format::TimelineStart::timeline);
  if (own == timelines.history.end()) timelines.history.push_back({at.timeline, {}});
  std::ranges::sort(timelines.history, {}, &format::TimelineStart::timeline);
  return timelines;
}

Task<format::Timelines> add_timelines(Site site, format::Timelines ours, RestoreCounts counts,
                                      std::uint64_t attempt) {
  CKPT_CO_TRY(const format::Timelines there, co_await load_timelines(site, ours.run));
  CKPT_CO_TRY(format::Timelines merged, merge(there, ours));
  if (counts == RestoreCounts::of_ours) merged.restore_counts = ours.restore_counts;
  if (merged == there) co_return merged;
  CKPT_CO_CHECK(co_await store_timelines(site, merged, attempt));
  co_return merged;
}

}  // namespace ckpt::storage
