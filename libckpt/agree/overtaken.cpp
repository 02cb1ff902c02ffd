#include "agree/overtaken.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"

namespace ckpt::agree {

std::string describe_overtaken(const ClusterView& view, const History& before, const History& now) {
  std::optional<format::StepId> newest;
  for (const format::NodeReport& node : view.reports) {
    for (const format::Holding& holding : node.holdings) {
      const format::StepId& at = holding.id.at;
      if (is_fenced(now, at) && !is_fenced(before, at) && (!newest || at > *newest)) newest = at;
    }
  }
  if (!newest) return {};
  const auto start = std::ranges::find_if(
      now, [&](const format::TimelineStart& each) { return is_fenced({each}, *newest); });
  CKPT_ASSERT(start != now.end());
  CKPT_ASSERT(start->base.has_value());
  return fmt::format(
      "step {} in memory is not one to go on from any more: another daemon has begun timeline {} "
      "of "
      "this job in the same directory, from step {}",
      number(newest->step), start->timeline, number(start->base->step));
}

}  // namespace ckpt::agree
