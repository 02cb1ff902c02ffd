#include "agree/flush_rule.hpp"

namespace ckpt::agree {

bool is_flush_due(const JobShape& shape, format::StepId committed, const FlushHistory& history,
                  Time now, bool is_final) {
  if (history.newest && committed <= *history.newest) return false;
  if (is_final) return true;
  const Interval& interval = shape.save_storage_interval;
  if (interval.is_never()) return false;
  if (interval.steps > 0) {
    // True if a multiple of the interval lies in (newest, committed]: after a step that was skipped
    // in memory, the next captured one is stored instead.
    const std::uint64_t before = history.newest ? number(history.newest->step) : 0;
    const std::uint64_t now_step = number(committed.step);
    if (before > now_step) return true;  // A new timeline from an older step.
    return now_step / interval.steps > before / interval.steps;
  }
  return !history.started_at || now - *history.started_at >= interval.time;
}

}  // namespace ckpt::agree
