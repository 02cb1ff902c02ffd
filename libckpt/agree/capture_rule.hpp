// CaptureRule: the step that all ranks capture next.
//
// By steps, ranks agree by themselves until one of them skips; then a common later step is ordered.
// By time, the coordinator's clock decides: one order for each interval. An order names a step that
// is still ahead of all ranks when they learn of it. At most one is outstanding: a later one would
// move the step away from ranks that have not reached it.
//
// Threads: one. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "agree/cluster_view.hpp"
#include "base/clock.hpp"

namespace ckpt::agree {

// The newest step that any rank has reached in `timeline`; 0: none.
std::uint64_t newest_seen(const ClusterView& view, std::uint64_t timeline);
// A step that is `margin` intervals beyond the newest of any rank.
Step next_common_capture(const ClusterView& view, std::uint64_t timeline, std::uint64_t margin);
// Whether some rank that trains in `timeline` has not reached the step yet.
bool is_before_some(const ClusterView& view, std::uint64_t timeline, Step step);

class CaptureRule {
 public:
  // `notice`: how long an order takes to reach all ranks.
  explicit CaptureRule(Duration notice) : notice_(notice) {}

  // All ranks begin after `base`. They capture the first step that they reach without an order.
  void begin(std::uint64_t base, Duration interval, Time now);
  // Forgets earlier orders: another node coordinates, or this one anew.
  void forget();
  void step_committed() { margin_ = 1; }

  // The order after some rank skipped a step. None: some rank has not reached the outstanding
  // order.
  std::optional<Step> after_skip(const ClusterView& view, std::uint64_t timeline, Step outstanding,
                                 Time now);
  // The order when the interval by time has passed. None: it has not, or captures go by steps.
  std::optional<Step> by_time(const ClusterView& view, std::uint64_t timeline, Step outstanding,
                              Time now);

 private:
  struct Fastest {  // The step of the fastest rank at a time.
    Time at{};
    std::uint64_t step = 0;
  };
  Step order(const ClusterView& view, std::uint64_t timeline, Step outstanding, Time now) const;

  Duration notice_;
  std::optional<Fastest> fastest_;  // None: this coordinator has just taken over.
  Time due_at_{};                   // By time: when the next order is due.
  std::uint64_t margin_ = 1;        // Intervals; doubles while steps are given up in a row.
};

}  // namespace ckpt::agree
