#include "client/restore_teller.hpp"

#include <utility>

namespace ckpt::client {

using std::chrono::steady_clock;

void RestoreTeller::watch(RestoreWatch watch) {
  watch_ = std::move(watch);
  is_given_up_ = false;
}

void RestoreTeller::begin(RestoreProgress::Phase phase, std::string source_name,
                          std::uint64_t bytes_total) {
  progress_ = {phase, 0, bytes_total, std::move(source_name), {}};
  done(0);
}

void RestoreTeller::done(std::uint64_t bytes) {
  progress_.bytes += bytes;
  if (!watch_) return;
  const auto now = steady_clock::now();
  if (now < next_) return;
  next_ = now + interval;
  if (!watch_(progress_)) is_given_up_ = true;
}

void RestoreTeller::end() {
  progress_ = {};
  progress_.phase = RestoreProgress::Phase::ended;
  next_ = {};
  if (watch_) (void)watch_(progress_);
}

}  // namespace ckpt::client
