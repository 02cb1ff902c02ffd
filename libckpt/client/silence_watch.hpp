// SilenceWatch: notices that the daemon has stopped answering the trainer's messages.
//
//   quiet --said--> expecting --ask_after--> asked --silent_after--> silent
//     ^------------------------------heard--------------------------------+
//
// Not every message gets an answer, so the watch sends one that does.
//
// Threads: the clock's.
#pragma once

#include <functional>
#include <memory>

#include "base/clock.hpp"

namespace ckpt::client {

class SilenceWatch {
 public:
  // A live daemon answers within milliseconds. Together they are what a user takes for a hang.
  static constexpr Duration ask_after = std::chrono::seconds(4);
  static constexpr Duration silent_after = std::chrono::seconds(8);

  // `ask` asks the daemon. `notify` is called with true when the daemon is silent, and with false
  // when it is heard again.
  SilenceWatch(Clock& clock, std::function<void()> ask, std::function<void(bool)> notify)
      : clock_(clock), ask_(std::move(ask)), notify_(std::move(notify)) {}

  void said();
  void heard();
  void forget();  // The daemon is gone: nothing is expected of it.

  Time silent_since() const { return since_; }  // Since the first unanswered message.

 private:
  enum class Stage : unsigned char { quiet, expecting, asked, silent };

  void wait(Duration duration);
  void expired();

  Clock& clock_;
  std::function<void()> ask_;
  std::function<void(bool)> notify_;
  Stage stage_ = Stage::quiet;
  Time since_{};
  Time due_{};
  Duration waits_{};
  std::unique_ptr<Timer> timer_;
};

}  // namespace ckpt::client
