#include "client/step_schedule.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/assert.hpp"
#include "snapshot/policy.hpp"

namespace ckpt::client {

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds report_interval{20};
// Every language that reads a checkpoint's files has a type for this number.
constexpr Step step_max{INT64_MAX};

Unexpected fail_going_back(Step step, Step newest) {
  return fail(Errc::invalid_argument,
              fmt::format("save step {}: step numbers must grow over the whole training, and step "
                          "{} came before: where each epoch counts from 0 again, give the steps of "
                          "all epochs so far; to train again from an older step, restore that step "
                          "first (a restore from a path changes the tensors only), and from the "
                          "beginning, call start_fresh()",
                          number(step), number(newest)));
}

}  // namespace

Status StepSchedule::check(Step step) const {
  if (step > step_max) {
    return fail(Errc::invalid_argument,
                fmt::format("save step {}: the largest is {}", number(step), number(step_max)));
  }
  const bool goes_back = last_seen_ && step < *last_seen_;
  const bool is_repeated = last_due_ && step <= *last_due_;
  if (!goes_back && !is_repeated) return {};
  if (goes_back) return fail_going_back(step, *last_seen_);
  if (step == refused_) {
    return fail(Errc::invalid_argument,
                fmt::format("save step {}: it was refused before and given up for all ranks; save "
                            "a later step",
                            number(step)));
  }
  if (step == skipped_) {
    return fail(Errc::invalid_argument,
                fmt::format("save step {}: it was skipped, and all ranks know that; save a later "
                            "step",
                            number(step)));
  }
  return fail_going_back(step, *last_due_);
}

bool StepSchedule::is_due(Step step) {
  if (!check(step)) return true;  // The save returns the error.
  if (reason_against(step, Due::by_policy) != SaveOutcome::not_due) return true;
  pass(step);
  return false;
}

std::optional<SaveOutcome> StepSchedule::ask(Step step, Due due) {
  CKPT_ASSERT(!attempt_);
  last_seen_ = step;
  const auto reason = reason_against(step, due);
  if (!reason) return reason;
  if (*reason == SaveOutcome::not_due) {
    pass(step);
  } else {
    // A rank that learned of the agreement too late has captured the step, and waits for ours.
    link_.skipped(step);
  }
  return reason;
}

std::optional<SaveOutcome> StepSchedule::reason_against(Step step, Due due) {
  const Step agreed = link_.next_capture();
  const bool is_by_policy = due == Due::by_policy;
  if (is_by_policy && options_.save_mem_interval.steps == 0) return reason_by_time(step, agreed);
  if (is_by_policy && !snapshot::is_due(options_.save_mem_interval, step))
    return SaveOutcome::not_due;
  if (step < agreed) return SaveOutcome::skipped_by_agreement;
  return std::nullopt;
}

// The coordinator's clock decides. It announces a step that no rank has reached yet. Each
// announcement is good for one capture.
std::optional<SaveOutcome> StepSchedule::reason_by_time(Step step, Step agreed) {
  const bool is_wanted = snapshot::is_due(options_.save_mem_interval, step) && step >= agreed &&
                         captured_for_ != agreed;
  if (is_wanted) return std::nullopt;
  report_progress(step);
  return SaveOutcome::not_due;
}

void StepSchedule::pass(Step step) {
  last_seen_ = step;
  link_.passed(step);
  report_passed(step);
}

// For the count of lost steps. The first step after a capture is always reported: else a restore of
// that capture would say that nothing was lost.
void StepSchedule::report_passed(Step step) {
  const auto now = steady_clock::now();
  if (now < next_passed_report_) return;
  next_passed_report_ = now + report_interval;
  link_.report_passed(step);
}

void StepSchedule::capture_began(Step step) {
  newest_begun_ = step;
  next_passed_report_ = {};
}

// The coordinator needs our progress, but not each step of a fast loop. This step may still be
// saved, due or not: only those before it are over.
void StepSchedule::report_progress(Step step) {
  const auto now = steady_clock::now();
  if (step == Step{} || now < next_report_) return;
  const Step over{number(step) - 1};
  if (newest_begun_ == over) return;  // Its capture reported it.
  next_report_ = now + report_interval;
  link_.skipped(over);
}

bool StepSchedule::begin(Step step) {
  CKPT_ASSERT(!attempt_);
  attempt_ = Attempt{step, link_.next_capture(), std::exchange(last_due_, step)};
  return refused_ != step;
}

StepSchedule::Attempt StepSchedule::end_attempt() {
  CKPT_ASSERT(attempt_.has_value());
  CKPT_ASSERT(last_due_ == attempt_->step);
  return *std::exchange(attempt_, std::nullopt);
}

void StepSchedule::started() {
  captured_for_ = end_attempt().agreed;
  refused_.reset();
}

void StepSchedule::skipped() {
  const Attempt attempt = end_attempt();
  refused_.reset();
  skipped_ = attempt.step;
  link_.skipped(attempt.step);
}

void StepSchedule::refused(bool has_begun) {
  const Attempt attempt = end_attempt();
  refused_ = attempt.step;
  // A rank that captured the step waits for our capture, until it learns that we skip the step.
  // Then the step stays skipped.
  const bool may_be_waited_for = has_begun && options_.world_size > 1;
  if (newest_begun_ == attempt.step || may_be_waited_for) return link_.skipped(attempt.step);
  last_due_ = attempt.due_before;
  link_.passed(attempt.step);
  if (has_begun) report_passed(attempt.step);
}

void StepSchedule::restart(std::optional<Step> restored) {
  CKPT_ASSERT(!attempt_);
  last_seen_ = last_due_ = restored;
  refused_.reset();
  skipped_.reset();
  newest_begun_.reset();
  captured_for_.reset();
  next_passed_report_ = {};
}

}  // namespace ckpt::client
