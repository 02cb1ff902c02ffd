// HeldCapture: a capture that was copied, and is told to nobody until its caller has judged it.
//
//   idle --begin--> copying --copied--> waiting --judge--> idle: the caller tells, or drops, it
//                      +----judge--> judged --copied--> idle: likewise
//
// Threads: `copied` from whichever thread copied the last byte; all else from one at a time.
#pragma once

#include <chrono>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>

#include "base/monitor.hpp"
#include "wire/control_calls.hpp"

namespace ckpt::client {

// What there is to tell of a capture.
struct CopiedCapture {
  wire::control::Filled filled;
  std::uint64_t bytes = 0;
  std::chrono::nanoseconds took{0};
};

class HeldCapture {
 public:
  struct Judged {
    CopiedCapture capture;
    Status verdict;
  };

  void begin(Step step);
  void forget();
  bool is_held(Step step) const;
  // None: the verdict is still to come.
  std::optional<Judged> copied(CopiedCapture capture);
  // None: the last byte was not copied yet, or this step is not held, or was judged before.
  std::optional<Judged> judge(Step step, Status verdict);
  // The step that waits for its verdict.
  std::optional<Step> waiting() const;

 private:
  struct State {
    std::optional<Step> step;
    std::optional<CopiedCapture> capture;
    std::optional<Status> verdict;
  };

  Monitor<State> state_;
};

}  // namespace ckpt::client
