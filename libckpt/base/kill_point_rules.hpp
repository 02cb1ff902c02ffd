// KillPointRules: the parsed form of LIBCKPT_POINTS.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::detail {

enum class PointAction : std::uint8_t {
  kill,   // SIGKILL to this process, at the n-th hit and any later one.
  stop,   // SIGSTOP to this process.
  log,    // Only records the hit.
  abort,  // Aborts, as a broken invariant does.
  pause,  // The thread waits until the file LIBCKPT_POINTS_RELEASE exists.
};

struct PointRule {
  std::string label;
  PointAction action = PointAction::log;
  std::uint32_t at_hit = 1;
};

// "label=action[@n];...". Errors: invalid_argument, naming the part that cannot be read.
Result<std::vector<PointRule>> parse_point_rules(std::string_view text);

}  // namespace ckpt::detail
