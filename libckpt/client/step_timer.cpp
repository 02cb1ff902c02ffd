#include "client/step_timer.hpp"

#include <limits>

namespace ckpt::client {

void StepTimer::begin(Step step, TimePoint now, bool is_capturing) {
  began_ = now;
  first_ = step;
  paused_ = std::chrono::nanoseconds(0);
  during_capture_ = is_capturing;
}

std::optional<wire::control::StepTime> StepTimer::step_ended(Step step, TimePoint now,
                                                             bool is_capturing) {
  if (!began_ || step < first_) {
    begin(step, now, is_capturing);
    return std::nullopt;
  }
  const std::uint64_t steps = number(step) - number(first_);
  const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(now - *began_) - paused_;
  if (steps == 0 || time < measured_min) return std::nullopt;
  wire::control::StepTime measured;
  measured.time = time;
  measured.during_capture = during_capture_;
  begin(step, now, is_capturing);
  if (steps > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  measured.steps = static_cast<std::uint32_t>(steps);
  if (not_counted_ < first_not_counted) {
    ++not_counted_;
    return std::nullopt;
  }
  return measured;
}

}  // namespace ckpt::client
