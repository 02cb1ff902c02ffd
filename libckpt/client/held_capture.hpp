// HeldCapture: a copied capture that is not sent to the engine until its caller has judged it.
//
//   idle --begin--> copying --copied--> waiting --judge--> idle: the caller sends or drops it
//                      +----judge--> judged --copied--> idle: the same
//
// Threads: `copied` on the thread that copied the last byte; all other calls one at a time.
#pragma once

#include <chrono>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>

#include "base/monitor.hpp"
#include "wire/control_calls.hpp"

namespace ckpt::client {

// CopiedCapture: the report of a capture.
struct CopiedCapture {
  wire::control::Filled filled;
  std::uint64_t bytes = 0;
  std::uint64_t bytes_unchanged = 0;
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
  // None: the last byte is not copied yet, or this step is not held or was judged before.
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
