#include "base/throttle.hpp"

#include <algorithm>
#include <cmath>

namespace ckpt {

namespace {

// Rounding may leave this much of a paid debt: a tenth of a byte.
constexpr double paid_below = 0.1;

}  // namespace

void Throttle::pay() {
  const Time now = clock_.now();
  const double seconds = std::chrono::duration<double>(now - paid_at_).count();
  const double paid = seconds * static_cast<double>(bytes_per_second_);
  bytes_unpaid_ = bytes_per_second_ == 0 ? 0 : std::max(0.0, bytes_unpaid_ - paid);
  paid_at_ = now;
}

Task<void> Throttle::take(std::uint64_t bytes) {
  const std::uint64_t taken_before = bytes_taken_;
  pay();
  bytes_taken_ += bytes;
  if (bytes_per_second_ != 0) bytes_unpaid_ += static_cast<double>(bytes);
  while (bytes_per_second_ != 0) {
    const double taken_since = static_cast<double>(bytes_taken_ - taken_before);
    const double unpaid_before = bytes_unpaid_ - taken_since;
    if (unpaid_before < paid_below) break;
    const double nanoseconds = 1e9 * unpaid_before / static_cast<double>(bytes_per_second_);
    const Duration wait(static_cast<Duration::rep>(std::ceil(nanoseconds)));
    auto woken = co_await changed_.wait_until(paid_at_ + wait);
    if (!woken) co_return fail(std::move(woken).error());
    pay();
  }
  co_return Status();
}

void Throttle::set_rate(std::uint64_t bytes_per_second) {
  if (bytes_per_second == bytes_per_second_) return;
  pay();
  bytes_per_second_ = bytes_per_second;
  if (bytes_per_second == 0) bytes_unpaid_ = 0;
  changed_.notify_all();
}

}  // namespace ckpt
