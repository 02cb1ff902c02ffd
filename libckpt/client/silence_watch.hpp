// SilenceWatch: notices that the daemon has stopped answering while the trainer says things.
//
//   quiet --said--> expecting --ask_after--> asked --silent_after--> silent
//     ^------------------------------heard--------------------------------+
//
// Not everything that a trainer says is answered, so it asks something that is.
//
// Threads: the clock's.
#pragma once

#include <functional>
#include <memory>

#include "base/clock.hpp"

namespace ckpt::client {

class SilenceWatch {
 public:
  // A daemon that lives answers within milliseconds; together, what a user takes for a hang.
  static constexpr Duration ask_after = std::chrono::seconds(4);
  static constexpr Duration silent_after = std::chrono::seconds(8);

  // `ask` asks the daemon; `tell` is called with true when it is silent, with false when it is
  // heard again.
  SilenceWatch(Clock& clock, std::function<void()> ask, std::function<void(bool)> tell)
      : clock_(clock), ask_(std::move(ask)), tell_(std::move(tell)) {}

  void said();
  void heard();
  void forget();  // The daemon is gone: nothing is expected of it.

  Time silent_since() const { return since_; }  // When it should have answered first.

 private:
  enum class Stage : unsigned char { quiet, expecting, asked, silent };

  void wait(Duration duration);
  void expired();

  Clock& clock_;
  std::function<void()> ask_;
  std::function<void(bool)> tell_;
  Stage stage_ = Stage::quiet;
  Time since_{};
  Time due_{};
  Duration waits_{};
  std::unique_ptr<Timer> timer_;
};

}  // namespace ckpt::client
