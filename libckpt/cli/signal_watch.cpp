#include "cli/signal_watch.hpp"

namespace ckpt::cli {

namespace {

volatile std::sig_atomic_t was_signalled = 0;

// A second signal comes from somebody who does not want to wait.
void note(int signal) {
  if (was_signalled != 0) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }
  was_signalled = 1;
}

}  // namespace

bool SignalWatch::has_signal() {
  return was_signalled != 0;
}

SignalWatch::SignalWatch() {
  for (std::size_t index = 0; index < before_.size(); ++index) {
    ::sigaction(signals[index], nullptr, &before_[index]);
    if (before_[index].sa_handler == SIG_IGN) continue;  // As nohup has it.
    struct sigaction noted = {};
    noted.sa_handler = note;
    ::sigaction(signals[index], &noted, nullptr);
  }
}

SignalWatch::~SignalWatch() {
  for (std::size_t index = 0; index < before_.size(); ++index)
    ::sigaction(signals[index], &before_[index], nullptr);
}

}  // namespace ckpt::cli
