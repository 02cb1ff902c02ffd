// Deadline: a point in time at which a wait of the trainer ends.
#pragma once

#include <algorithm>
#include <chrono>

namespace ckpt::client {

using Deadline = std::chrono::steady_clock::time_point;

// A caller that means "for ever" gives the largest number, which would overflow when added to the
// time: in nanoseconds, 64 bits are 292 years.
inline constexpr std::chrono::milliseconds longest_duration = std::chrono::hours(100 * 365 * 24);

inline Deadline deadline_after(std::chrono::milliseconds given) {
  return std::chrono::steady_clock::now() +
         std::clamp(given, std::chrono::milliseconds(0), longest_duration);
}

}  // namespace ckpt::client
