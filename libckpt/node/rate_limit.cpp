#include "node/rate_limit.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace ckpt::node {

void RateLimit::set_minimum(std::uint64_t bytes_per_second) {
  minimum_ = std::max(lowest, bytes_per_second);
  if (value_ != 0) value_ = std::max(value_, minimum_);
}

void RateLimit::disturbed(std::uint64_t bytes_per_second) {
  if (bytes_per_second == 0) return;  // Nothing was moved: no limit would have helped.
  if (value_ == 0) full_speed_ = bytes_per_second;
  // The work may be slower than its limit for reasons of its own.
  const std::uint64_t speed = value_ == 0 ? bytes_per_second : std::min(value_, bytes_per_second);
  const auto lower = static_cast<std::uint64_t>(decrease * static_cast<double>(speed));
  value_ = std::max(lower, minimum_);
  CKPT_ASSERT(full_speed_ > 0);  // Else the limit would never be lifted again.
}

void RateLimit::undisturbed() {
  if (value_ == 0) return;
  value_ += std::max<std::uint64_t>(
      static_cast<std::uint64_t>(increase * static_cast<double>(full_speed_)), 1);
  if (value_ > full_speed_) value_ = 0;
}

}  // namespace ckpt::node
