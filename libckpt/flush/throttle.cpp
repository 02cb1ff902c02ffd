#include "flush/throttle.hpp"

#include <algorithm>

namespace ckpt::flush {

namespace {

// What may be moved at once after a pause.
constexpr Duration burst = std::chrono::seconds(1);

}  // namespace

Task<void> Throttle::take(std::uint64_t bytes) {
  if (bytes_per_second_ == 0) co_return Status();
  const Time now = clock_.now();
  paid_until_ = std::max(paid_until_, now - burst);
  const double seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_second_);
  paid_until_ += std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  if (paid_until_ <= now) co_return Status();
  Status waited = co_await sleep_until(clock_, paid_until_);
  co_return waited;
}

}  // namespace ckpt::flush
