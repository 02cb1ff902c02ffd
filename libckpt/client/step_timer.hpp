// StepTimer: measures the time of training steps between saves.
//
// It leaves out our own calls: no limit of the daemon's work would make a capture hold the trainer
// less. Short steps are measured several at a time, and the mean counts: a trainer that only queues
// work on a GPU waits for it now and then. The first steps are not counted: they compile, and touch
// memory for the first time.
//
// Threads: the training thread.
#pragma once

#include <chrono>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>

#include "wire/control_calls.hpp"

namespace ckpt::client {

class StepTimer {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Shorter times drown in the noise of the scheduler, and would be sent too often.
  static constexpr std::chrono::milliseconds measured_min{50};
  static constexpr int first_not_counted = 2;

  // Pause: a call of ours, in which nobody trains.
  class Pause {
   public:
    explicit Pause(StepTimer& timer) : timer_(timer), began_(std::chrono::steady_clock::now()) {}
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
    ~Pause() { timer_.paused(std::chrono::steady_clock::now() - began_); }
    TimePoint began() const { return began_; }

   private:
    StepTimer& timer_;
    TimePoint began_;
  };

  // The steps up to `step` have ended. Returns their time, once it is long enough to be sent.
  std::optional<wire::control::StepTime> step_ended(Step step, TimePoint now, bool is_capturing);
  void paused(std::chrono::nanoseconds duration) { paused_ += duration; }
  void capture_began() { during_capture_ = true; }
  // After a restore: the next steps are the first ones again.
  void restart() { *this = StepTimer(); }

 private:
  void begin(Step step, TimePoint now, bool is_capturing);

  std::optional<TimePoint> began_;
  Step first_{};  // The last step that had ended then.
  std::chrono::nanoseconds paused_{0};
  bool during_capture_ = false;
  int not_counted_ = 0;
};

}  // namespace ckpt::client
