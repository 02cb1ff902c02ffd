// SignalWatch: while it lives, a signal that would end the process is noted, so that a command can
// leave everything in order first. A second one ends the process at once.
#pragma once

#include <array>
#include <csignal>

namespace ckpt::cli {

class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  static bool has_signal();  // Since the first watch of the process began.

 private:
  static constexpr std::array signals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, signals.size()> before_{};
};

}  // namespace ckpt::cli
