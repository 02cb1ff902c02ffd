#include "device/token_bucket.hpp"

#include <algorithm>

namespace ckpt::device {

bool TokenBucket::take(std::uint64_t bytes, Time now) {
  if (rate_ == 0) return true;
  const auto burst = static_cast<double>(burst_);
  if (filled_at_ == Time{}) {
    tokens_ = burst;
  } else {
    const double seconds = std::chrono::duration<double>(now - filled_at_).count();
    tokens_ = std::min(burst, tokens_ + seconds * static_cast<double>(rate_));
  }
  filled_at_ = now;
  if (tokens_ < std::min(burst, static_cast<double>(bytes))) return false;
  tokens_ -= static_cast<double>(bytes);
  return true;
}

}  // namespace ckpt::device
