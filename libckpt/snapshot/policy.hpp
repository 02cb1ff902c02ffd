// Policy: whether a step is due by the trainer's own interval. Pure: all ranks answer alike.
#pragma once

#include <ckpt/options.hpp>
#include <ckpt/tensor.hpp>

namespace ckpt::snapshot {

// By steps: every n-th. By time: any step, since the coordinator's clock decides and announces the
// next step that all ranks capture; clocks of ranks differ.
constexpr bool is_due(const Interval& interval, Step step) {
  if (interval.steps > 0) return number(step) % interval.steps == 0;
  return interval.time.count() > 0;
}

}  // namespace ckpt::snapshot
