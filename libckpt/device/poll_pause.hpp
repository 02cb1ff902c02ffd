// PollPause: how long `ckpt-gpu` sleeps between two looks at what is queued.
//
// Each look calls the driver, and takes its lock from the trainer. So while all copies wait for the
// trainer's work, which may be far from its end, the pause doubles up to a limit.
//
// Threads: one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace ckpt::device {

class PollPause {
 public:
  static constexpr std::chrono::microseconds shortest{50};  // A tenth of a batch's time.
  static constexpr std::chrono::microseconds longest{800};  // The first batch may wait so long.

  enum class Seen : std::uint8_t {
    moved,      // Something was queued, or has ended.
    under_way,  // A batch of some run has arrived: the next one is near its end.
    far,        // No run has any.
  };
  void looked(Seen seen) { pause_ = seen == Seen::far ? std::min(2 * pause_, longest) : shortest; }
  std::chrono::microseconds length() const { return pause_; }

 private:
  std::chrono::microseconds pause_ = shortest;
};

}  // namespace ckpt::device
