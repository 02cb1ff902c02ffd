// CopyRule: which stored step the second place of a job gets, and when.
//
// The newest one wins: those between it and the last copy are left out. Steps that a restore
// abandoned are in neither list.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

#include "format/agreement.hpp"

namespace ckpt::agree {

struct DatedStep {
  format::StepId at;
  std::uint64_t created_unix_seconds = 0;  // By its writer's clock.
};

// CopyPace: each so many-th step that the first place got, or one after so much time.
struct CopyPace {
  std::uint64_t steps = 0;  // 0: by time.
  std::chrono::seconds time{0};
};

struct CopyView {
  std::span<const DatedStep> first, second;  // In either place, in any order.
  // Steps that this node has seen published since it began to copy one: retention may have removed
  // them by now.
  std::uint64_t published_since = 0;
  bool is_last = false;  // Nothing newer will come.
};

// None: the second place has the newest one, or its time has not come. A second place without any
// step gets one at once.
std::optional<format::StepId> step_to_copy(const CopyView& view, const CopyPace& pace);

}  // namespace ckpt::agree
