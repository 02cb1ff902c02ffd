// StepSchedule: which steps are captured, and what the other ranks learn about the others.
//
//   check -> ask --none--> begin -> started, skipped or refused
//               +--a reason--> over
//
// Invariants: a step that was due and is not captured is either reported as skipped, so that no
//             rank waits for it, or may come again. Steps grow, except after restart().
// Threads:    the training thread.
#pragma once

#include <chrono>
#include <ckpt/options.hpp>
#include <ckpt/outcome.hpp>
#include <ckpt/result.hpp>
#include <cstdint>
#include <optional>

#include "client/session_link.hpp"

namespace ckpt::client {

enum class Due : std::uint8_t { by_policy, always };

class StepSchedule {
 public:
  // Both are borrowed.
  StepSchedule(const Options& options, SessionLink& link) : options_(options), link_(link) {}

  // Errors: invalid_argument (the step does not grow).
  Status check(Step step) const;
  // False counts as ask() with the answer `not_due`.
  bool is_due(Step step);
  // Why `step` is not captured; none: capture it.
  std::optional<SaveOutcome> ask(Step step, Due due);

  // Begins an attempt to capture `step`; one of the next three calls ends it. False: the step was
  // tried before.
  bool begin(Step step);
  void started();
  void skipped();
  // By an error. The step is given up if other ranks may wait for it; else it may come again.
  void refused(bool has_begun);

  void capture_began(Step step);  // A Slot was taken for it.
  void capture_failed() { captured_for_.reset(); }
  // Training goes on after this step; none: it begins, with any step.
  void restart(std::optional<Step> restored);

  // No step was saved, passed or restored: any step may be the first.
  bool is_at_beginning() const { return !last_seen_ && !last_due_; }

 private:
  struct Attempt {
    Step step{};
    Step agreed{};
    std::optional<Step> due_before;
  };

  std::optional<SaveOutcome> reason_against(Step step, Due due);
  std::optional<SaveOutcome> reason_by_time(Step step, Step agreed);
  void pass(Step step);
  void report_progress(Step step);
  void report_passed(Step step);
  Attempt end_attempt();

  const Options& options_;
  SessionLink& link_;
  std::optional<Step> last_seen_;
  std::optional<Step> last_due_;  // Captured or skipped: it is not tried again.
  std::optional<Step> refused_;   // The newest whose save was an error.
  std::optional<Step> skipped_;   // The newest for which there was no Slot.
  std::optional<Step> newest_begun_;
  std::optional<Step> captured_for_;  // By time: the announcement that we followed.
  std::optional<Attempt> attempt_;
  std::chrono::steady_clock::time_point next_report_{}, next_passed_report_{};
};

}  // namespace ckpt::client
