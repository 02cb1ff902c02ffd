// Deadline: a point in time at which a wait of the trainer ends.
#pragma once

#include <algorithm>
#include <chrono>

namespace ckpt::client {

using Deadline = std::chrono::steady_clock::time_point;

// Who means "for ever" gives the longest number there is, which added to the time would be one long
// ago.
inline Deadline deadline_after(std::chrono::milliseconds given) {
  constexpr std::chrono::milliseconds longest = std::chrono::hours(100 * 365 * 24);
  return std::chrono::steady_clock::now() +
         std::clamp(given, std::chrono::milliseconds(0), longest);
}

}  // namespace ckpt::client
