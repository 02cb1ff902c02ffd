#include "client/silence_watch.hpp"

#include <utility>

namespace ckpt::client {

namespace {

// A later timer means that we were held up ourselves, and have not read the daemon's messages yet.
constexpr Duration lateness_max = std::chrono::seconds(2);

}  // namespace

void SilenceWatch::said() {
  if (stage_ != Stage::quiet) return;
  stage_ = Stage::expecting;
  since_ = clock_.now();
  wait(ask_after);
}

void SilenceWatch::heard() {
  const Stage before = std::exchange(stage_, Stage::quiet);
  timer_.reset();
  if (before == Stage::silent) notify_(false);
}

void SilenceWatch::forget() {
  stage_ = Stage::quiet;
  timer_.reset();
}

void SilenceWatch::wait(Duration duration) {
  waits_ = duration;
  due_ = clock_.after(duration);
  timer_ = clock_.call_at(due_, [this] { expired(); });
}

void SilenceWatch::expired() {
  if (clock_.now() > due_ + lateness_max) return wait(waits_);
  if (stage_ == Stage::expecting) {
    stage_ = Stage::asked;
    wait(silent_after);
    ask_();
  } else if (stage_ == Stage::asked) {
    stage_ = Stage::silent;
    notify_(true);
  }
}

}  // namespace ckpt::client
