// LeftAttempts: work directories, and attempts in buckets, that nobody will finish: the remains of
// flushes and deletions that a death ended.
//
// Nothing in a directory says whether a process of some node still writes there. So it counts as
// left when nothing in it has changed for a while.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "storage/site.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

// Longer than any stall after which a flush goes on; clocks of nodes differ by less.
inline constexpr Duration attempt_left_after = std::chrono::hours(1);

struct LeftAttempt {
  std::string name;
  format::StepId at;
  std::uint64_t bytes = 0;
  bool is_left = false;  // False: it has changed lately.
};

// All work directories, or all attempts in a bucket that are no checkpoints, sorted by name;
// changes nothing. Errors: not_found, io; in a bucket also those of a manifest that cannot be read.
Task<std::vector<LeftAttempt>> list_attempts(Site site);

}  // namespace ckpt::storage
