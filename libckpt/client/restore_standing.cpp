#include "client/restore_standing.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/assert.hpp"

namespace ckpt::client {

namespace {

// Not with the restore's code: a caller of save would take not_found for harmless.
Error refused_after(const Error& restore) {
  return Error(Errc::invalid_argument, restore.text(), restore.cause())
      .context(
          "refused, since the restore before it failed and what is stored may be good; restore "
          "again, or call start_fresh() to begin without it");
}

}  // namespace

Status RestoreStanding::check_save() const {
  if (refusal_) return fail(Error(*refusal_));
  return {};
}

Status RestoreStanding::check_restored(Step step) const {
  if (step == restored_) return {};
  // A wrong step must not clear the suspicion from the restored one.
  return fail(Errc::invalid_argument,
              fmt::format("restored_ok step {}: this session restored {}", number(step),
                          restored_ ? fmt::format("step {}", number(*restored_)) : "nothing"));
}

void RestoreStanding::restored(Step step) {
  begun();
  refusal_.reset();
  restored_ = step;
  is_partly_restored_ = false;
}

void RestoreStanding::loaded() {
  if (is_refused_for_path_) refusal_.reset();
}

RestoreStanding::Failed RestoreStanding::failed(Error error, bool is_step_named) {
  has_begun_ = false;  // The next save begins with the other ranks, or goes on as before.
  const bool is_nothing_there = error.code() == Errc::not_found && !is_partly_restored_;
  if (is_nothing_there && !is_step_named) refusal_.reset();
  const bool begins_again = is_nothing_there && is_step_named && has_trained_;
  const bool begins_anew = is_nothing_there && !is_step_named && !has_trained_ &&
                           !std::exchange(has_found_nothing_, true);
  return {failed_alone(std::move(error), is_step_named), begins_again, begins_anew};
}

Error RestoreStanding::failed_alone(Error error, bool is_step_named) {
  // The copy died with its daemon halfway, and there is no other. But not_found means "train from
  // the beginning", and these tensors are no longer those of the beginning.
  if (is_partly_restored_ && error.code() == Errc::not_found)
    error = Error(Errc::unavailable, error.text() + "; restore again");
  // If the named step is missing, others may exist, which a new beginning would replace.
  const bool would_begin = is_step_named && !has_trained_;
  if (error.code() != Errc::not_found || would_begin) {
    is_refused_for_path_ = is_from_path_ && (!refusal_ || is_refused_for_path_);
    refusal_.emplace(refused_after(error));
  }
  if (!is_partly_restored_) return error;
  CKPT_ASSERT(refusal_.has_value());
  return std::move(error).context(
      "the restore overwrote a part of the tensors and then failed; do not train on with them");
}

void RestoreStanding::not_begun(const Error& error) {
  if (has_asked_ || error.code() != Errc::invalid_argument) return;
  is_refused_for_path_ = false;
  refusal_.emplace(error);
}

void RestoreStanding::begun_fresh() {
  begun();
  restored_.reset();
}

}  // namespace ckpt::client
