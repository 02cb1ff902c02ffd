// ReconnectPause: how long a DaemonLink waits before it connects again.
//
// The pause doubles up to a limit. A connection that held makes it short again.
#pragma once

#include <algorithm>
#include <utility>

#include "base/clock.hpp"

namespace ckpt::client {

class ReconnectPause {
 public:
  static constexpr Duration first = std::chrono::milliseconds(50);
  static constexpr Duration longest = std::chrono::seconds(10);
  // The user waits while a trainer opens.
  static constexpr Duration longest_to_open = std::chrono::milliseconds(500);
  // A daemon that drops us sooner has a reason, and will drop us again.
  static constexpr Duration stable_time = std::chrono::milliseconds(20);

  // Records that a connection ended after it had been attached for `lasted`.
  void connection_ended(Duration lasted) {
    if (lasted >= stable_time) next_ = first;
  }
  Duration next(bool was_attached) {
    return std::exchange(next_, std::min(next_ * 2, was_attached ? longest : longest_to_open));
  }

 private:
  Duration next_ = first;
};

}  // namespace ckpt::client
