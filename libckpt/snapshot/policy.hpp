// Policy: decides whether a step is due by the trainer's interval. Pure: all ranks decide alike.
#pragma once

#include <ckpt/options.hpp>
#include <ckpt/tensor.hpp>

namespace ckpt::snapshot {

// By steps: every n-th. By time: any step, because clocks of ranks differ. The coordinator's clock
// decides there, and announces the next step, which all ranks capture.
constexpr bool is_due(const Interval& interval, Step step) {
  if (interval.steps > 0) return number(step) % interval.steps == 0;
  return interval.time.count() > 0;
}

}  // namespace ckpt::snapshot
