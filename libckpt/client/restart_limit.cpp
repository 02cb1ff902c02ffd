#include "client/restart_limit.hpp"

#include <algorithm>

namespace ckpt::client {

std::size_t RestartLimit::recent(Time now) const {
  const auto is_recent = [now](Time start) { return start + window > now; };
  return static_cast<std::size_t>(std::count_if(starts_.begin(), starts_.end(), is_recent));
}

Time RestartLimit::next(Time now) const {
  if (recent(now) < starts_in_window_max) return now;
  return std::max(now, starts_.back() + interval_beyond);
}

void RestartLimit::started(Time now) {
  while (!starts_.empty() && starts_.front() + window <= now) starts_.pop_front();
  starts_.push_back(now);
  // Beyond the limit starts are a minute apart: at most ten more fit into the window.
  while (starts_.size() > 2 * starts_in_window_max + 5) starts_.pop_front();
}

}  // namespace ckpt::client
