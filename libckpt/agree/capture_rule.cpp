#include "agree/capture_rule.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace ckpt::agree {

namespace {

constexpr std::uint64_t margin_max = 64;  // Intervals.

bool is_by_time(const Interval& interval) {
  return interval.steps == 0 && interval.time > Duration::zero();
}

bool is_outstanding(const ClusterView& view, std::uint64_t timeline, Step ordered) {
  return ordered != Step{} && is_before_some(view, timeline, ordered);
}

}  // namespace

std::uint64_t newest_seen(const ClusterView& view, std::uint64_t timeline) {
  std::uint64_t newest = 0;
  for (const RankView& rank : ranks_of(view)) {
    if (rank.report == nullptr || rank.report->timeline != timeline) continue;
    if (const auto seen = rank.report->last_seen) newest = std::max(newest, number(*seen));
  }
  return newest;
}

Step next_common_capture(const ClusterView& view, std::uint64_t timeline, std::uint64_t margin) {
  const std::uint64_t newest = newest_seen(view, timeline);
  const std::uint64_t interval = std::max<std::uint64_t>(1, view.shape.save_mem_interval.steps);
  return Step{(newest / interval + 1 + margin) * interval};
}

bool is_before_some(const ClusterView& view, std::uint64_t timeline, Step step) {
  const std::vector<RankView> ranks = ranks_of(view);
  return std::any_of(ranks.begin(), ranks.end(), [&](const RankView& rank) {
    if (rank.report == nullptr || rank.report->timeline != timeline) return false;
    const bool has_come = rank.report->last_seen && *rank.report->last_seen >= step;
    return !has_come && !rank.report->is_closing;
  });
}

void CaptureRule::begin(std::uint64_t base, Duration interval, Time now) {
  fastest_ = Fastest{now, base};
  due_at_ = now + interval;
  margin_ = 1;
}

void CaptureRule::forget() {
  fastest_.reset();
  margin_ = 1;
}

// By steps, a short distance is tried first, and is mostly enough. By time, it is the distance that
// the ranks cover during the notice, at their pace since the last order.
Step CaptureRule::order(const ClusterView& view, std::uint64_t timeline, Step outstanding,
                        Time now) const {
  std::uint64_t steps_of_notice = 0;
  if (fastest_ && now > fastest_->at && is_by_time(view.shape.save_mem_interval)) {
    const auto passed = static_cast<std::uint64_t>((now - fastest_->at).count());
    const std::uint64_t newest = newest_seen(view, timeline);
    const std::uint64_t steps = newest - std::min(newest, fastest_->step);
    steps_of_notice = steps * static_cast<std::uint64_t>(notice_.count()) / passed;
  }
  return std::max(outstanding, next_common_capture(view, timeline, margin_ + steps_of_notice));
}

std::optional<Step> CaptureRule::after_skip(const ClusterView& view, std::uint64_t timeline,
                                            Step outstanding, Time now) {
  // Ranks may run far apart. A late rank that skips a step on its way to the outstanding order is
  // no reason for another order, which would be just as far from it.
  if (is_outstanding(view, timeline, outstanding)) return std::nullopt;
  const Step ordered = order(view, timeline, outstanding, now);
  margin_ = std::min(margin_ * 2, margin_max);
  CKPT_ASSERT(number(ordered) > newest_seen(view, timeline));
  return ordered;
}

std::optional<Step> CaptureRule::by_time(const ClusterView& view, std::uint64_t timeline,
                                         Step outstanding, Time now) {
  const Interval& interval = view.shape.save_mem_interval;
  if (!is_by_time(interval)) return std::nullopt;
  const std::uint64_t newest = newest_seen(view, timeline);
  if (newest == 0) return std::nullopt;  // No rank has reported a step yet.
  if (!fastest_) {
    // A node's memory may have been lost with the previous coordinator: wait only until the pace is
    // known, not a whole interval.
    fastest_ = Fastest{now, newest};
    due_at_ = now + notice_;
  }
  // A training that starts without a base may begin at any step number.
  if (fastest_->step == 0) fastest_ = Fastest{now, newest};
  if (now < due_at_ || is_outstanding(view, timeline, outstanding)) return std::nullopt;
  const Step ordered = order(view, timeline, outstanding, now);
  fastest_ = Fastest{now, newest};
  due_at_ = now + interval.time;
  CKPT_ASSERT(number(ordered) > newest);
  return ordered;
}

}  // namespace ckpt::agree
