// RestoreStanding: the state of a session's restore, and so whether the session may save.
//
//   new --restored, or begun fresh--> begun --a restore fails--> begun before, or forbidden
//   forbidden --restored, nothing stored at all, or a fresh start--> saves are allowed again
//   new, or filled from a path --a first save finds a step that is there--> forbidden
//
// Invariants: a failed or missing restore forbids saves as long as stored steps may be good, since
//             the saves would replace them.
// Threads:    the training thread.
#pragma once

#include <ckpt/error.hpp>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <optional>

namespace ckpt::client {

class RestoreStanding {
 public:
  bool has_begun() const { return has_begun_; }
  // Errors: invalid_argument (a restore failed, or is missing).
  Status check_save() const;
  // Errors: invalid_argument (this session restored another step, or none).
  Status check_restored(Step step) const;

  const std::optional<Step>& restored_step() const { return restored_; }
  // Whether a restore of the job's own steps, or a fresh start, was asked for.
  bool has_asked() const { return has_asked_; }

  void started() {
    has_asked_ = true;
    is_partly_restored_ = is_from_path_ = false;
  }
  // The job may have steps of its own, of which nobody has asked.
  void started_from_path() {
    is_partly_restored_ = false;
    is_from_path_ = true;
  }
  void overwrites() { is_partly_restored_ = true; }  // From now on some tensors hold that step.
  void restored(Step step);
  // From a path: the timeline stays as it is, and so does a refusal for the sake of the job's own
  // steps.
  void loaded();
  struct Failed {
    Error error;                // For the caller of the restore.
    bool begins_again = false;  // No rank has the step: the session goes on as before.
    bool begins_anew = false;   // Nothing is there: for the first time, training begins.
  };
  Failed failed(Error error, bool is_step_named);
  // The same for a restore that failed before the other ranks answered, or without them.
  Error failed_alone(Error error, bool is_step_named);

  void allow_saves() {
    has_asked_ = true;
    refusal_.reset();
  }
  void begun() { has_begun_ = has_trained_ = true; }
  // In mid-training. Until the other ranks agree it has not begun: a save goes on as before.
  void begins_anew() { has_begun_ = false; }
  void begun_fresh();
  // A first save did not begin. Where a restore is missing, no later save asks again.
  void not_begun(const Error& error);

 private:
  bool has_asked_ = false;
  bool has_begun_ = false;    // A timeline is open: restored, or started fresh.
  bool has_trained_ = false;  // It began once: it goes on after a restore that finds nothing.
  bool has_found_nothing_ = false;
  bool is_partly_restored_ = false;
  std::optional<Step> restored_;      // The open timeline began with it.
  bool is_from_path_ = false;         // The newest restore.
  std::optional<Error> refusal_;      // Set: saves fail with it, since stored steps may be good.
  bool is_refused_for_path_ = false;  // Another restore from a path ends it.
};

}  // namespace ckpt::client
