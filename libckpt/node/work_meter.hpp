// WorkMeter: for how long in all some kind of work was under way.
//
// Threads: one. Lifetime: a Pass may outlive the meter and its clock; it is best ended by end().
#pragma once

#include <memory>

#include "base/clock.hpp"

namespace ckpt::node {

class WorkMeter {
  struct State {
    int count = 0;
    bool was_dropped = false;  // A Pass, since `settled_at`.
    Duration total{0};
    Time settled_at{};

    void settle(Time now) {
      if (count > 0 || was_dropped) total += now - settled_at;
      settled_at = now;
      was_dropped = false;
    }
  };

 public:
  class Pass {
   public:
    explicit Pass(std::shared_ptr<State> state) : state_(std::move(state)) { ++state_->count; }
    Pass(Pass&&) noexcept = default;
    Pass& operator=(Pass&&) = delete;
    // Without end() the work counts until the meter is looked at: its context may be
    // gone, and with it the clock.
    ~Pass() {
      if (!state_) return;
      --state_->count;
      state_->was_dropped = true;
    }
    void end(Time now) {
      state_->settle(now);
      --state_->count;
      state_.reset();
    }

   private:
    std::shared_ptr<State> state_;
  };

  Pass begin(Time now) {
    state_->settle(now);
    return Pass(state_);
  }
  Duration total(Time now) const {
    state_->settle(now);
    return state_->total;
  }
  bool is_under_way() const { return state_->count > 0; }

 private:
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace ckpt::node
