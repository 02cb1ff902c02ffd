#include "base/stop_gate.hpp"

#include <fmt/format.h>

namespace ckpt {

Task<void> StopGate::drained(Clock& clock, Time deadline) {
  const std::shared_ptr<int> count = count_;
  while (*count > 0) {
    if (clock.now() >= deadline) {
      co_return fail(Errc::unavailable,
                     fmt::format("wait for work in flight: {} left at the deadline", *count));
    }
    const Time next = clock.after(std::chrono::milliseconds(1));
    CKPT_CO_CHECK(co_await sleep_until(clock, next));
  }
  co_return Status();
}

}  // namespace ckpt
