// StopGate: counts work in flight, so that its owner can refuse new work and wait for the old.
//
// Threads: one. A Pass outlives the gate safely: it shares the count.
#pragma once

#include <memory>

#include "base/clock.hpp"
#include "base/signal.hpp"

namespace ckpt {

class StopGate {
 public:
  class Pass {
   public:
    explicit Pass(std::shared_ptr<int> count) : count_(std::move(count)) { ++*count_; }
    Pass(Pass&& other) noexcept : count_(std::move(other.count_)) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (count_) --*count_;
    }

   private:
    std::shared_ptr<int> count_;
  };

  bool is_stopping() const { return stopping_; }
  int in_flight() const { return *count_; }
  // Take one at the start of a coroutine and keep it in its frame.
  Pass enter() { return Pass(count_); }
  void stop() { stopping_ = true; }
  // Polls every millisecond of `clock` until nothing is in flight. Errors: unavailable (deadline).
  Task<void> drained(Clock& clock, Time deadline);

 private:
  std::shared_ptr<int> count_ = std::make_shared<int>(0);
  bool stopping_ = false;
};

}  // namespace ckpt
