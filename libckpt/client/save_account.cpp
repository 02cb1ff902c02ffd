#include "client/save_account.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "arena/arena_limits.hpp"
#include "base/assert.hpp"

namespace ckpt::client {

namespace {

// More than there are Slots, and so captures that the engine has not answered yet.
constexpr std::size_t starts_max = 16;
// A trainer waits for a step soon after its save, or not at all.
constexpr std::size_t not_saved_max = 16;

double in_milliseconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

const char* reached_level(Step step, const LinkCounters& link) {
  if (link.durable >= step) return "durable";
  if (link.committed >= step) return "committed";
  if (link.replicated >= step) return "replicated";
  if (link.captured >= step) return "captured";
  return "copied";
}

// Without those that the ranks agreed to leave out.
std::uint64_t not_captured(const Stats& stats) {
  return stats.skipped_no_slot + stats.skipped_unavailable + stats.failed;
}

}  // namespace

void SaveAccount::held(std::chrono::nanoseconds duration) {
  stats_.held += duration;
  stats_.held_max = std::max(stats_.held_max, duration);
}

void SaveAccount::due(Step step) {
  ++due_count_;
  newest_due_ = step;
}

void SaveAccount::restart() {
  newest_due_.reset();
  starts_.clear();
}

void SaveAccount::started(Step step) {
  starts_.push_back({step, due_count_});
  if (starts_.size() > starts_max) starts_.pop_front();
  ++stats_.saves_started;
  held_before_ = stats_.held;
}

std::optional<std::uint64_t> SaveAccount::due_after(Step saved) const {
  for (const StartedSave& start : starts_) {
    if (start.step == saved) return due_count_ - start.due_count;
  }
  return std::nullopt;
}

void SaveAccount::skipped(SaveOutcome outcome) {
  if (outcome == SaveOutcome::skipped_no_slot) ++stats_.skipped_no_slot;
  if (outcome == SaveOutcome::skipped_unavailable) ++stats_.skipped_unavailable;
  if (outcome == SaveOutcome::skipped_by_agreement) ++stats_.skipped_by_agreement;
}

void SaveAccount::failed_elsewhere(std::string why) {
  ++stats_.failed;
  stats_.last_error = std::move(why);
}

void SaveAccount::failed(const Error& error) {
  failed_elsewhere(error.message());
  if (!failures_.may_speak()) return;
  // A capture that we gave up costs a step, and the next one is made as always.
  if (error.code() == Errc::cancelled) return log_warning("{}", stats_.last_error);
  log_error("{}", stats_.last_error);
}

void SaveAccount::not_saved(Step step, std::string why) {
  not_saved_.push_back({step, std::move(why)});
  if (not_saved_.size() > not_saved_max) not_saved_.pop_front();
}

std::string SaveAccount::why_not_saved(Step step) const {
  const auto found =
      std::ranges::find(not_saved_.rbegin(), not_saved_.rend(), step, &NotSaved::step);
  return found == not_saved_.rend() ? std::string() : found->why;
}

void SaveAccount::unavailable(const Error& error) {
  stats_.last_error = error.message();
  if (failures_.may_speak()) log_warning("steps are skipped: {}", stats_.last_error);
}

void SaveAccount::ended(const snapshot::Captured& captured) {
  CKPT_ASSERT(!has_ended_.load());
  ended_ = {captured.step, captured.bytes, captured.bytes_unchanged, captured.took, std::nullopt};
  if (!captured.status) ended_.error.emplace(captured.status.error());
  has_ended_.store(true, std::memory_order_release);
}

std::optional<Step> SaveAccount::collect() {
  if (!has_ended_.load(std::memory_order_acquire)) return std::nullopt;
  Ended ended = std::move(ended_);
  has_ended_.store(false, std::memory_order_release);
  if (ended.error) {
    not_saved(ended.step, ended.error->text());
    failed(std::move(*ended.error)
               .context(fmt::format("{}: capture step {}", who_, number(ended.step))));
    return ended.step;
  }
  stats_.bytes_captured += ended.bytes;
  stats_.bytes_unchanged += ended.bytes_unchanged;
  line_ = std::move(ended);
  return std::nullopt;
}

void SaveAccount::report(const LinkCounters& link) {
  if (!line_) return;
  if (!logged_job_.empty())
    log_info("job={} step {} captured in {:.1f} ms, held {:.1f} ms, {}{}, {}", logged_job_,
             number(line_->step), in_milliseconds(line_->took),
             in_milliseconds(stats_.held - held_before_), arena::human_bytes(line_->bytes),
             line_->bytes_unchanged == 0
                 ? ""
                 : fmt::format(" ({} unchanged)", arena::human_bytes(line_->bytes_unchanged)),
             reached_level(line_->step, link));
  line_.reset();
}

Stats SaveAccount::stats(const LinkCounters& link) const {
  Stats out = stats_;
  out.daemon_restarts = link.daemon_restarts;
  out.captured = link.captured;
  out.replicated = link.replicated;
  out.committed = link.committed;
  out.durable = link.durable;
  if (out.last_error.empty()) out.last_error = link.last_error;
  out.degraded = link.degraded;
  return out;
}

void SaveAccount::warn_if_behind(const LinkCounters& link) const {
  const Stats now = stats(link);
  const bool is_behind = newest_due_ && now.saves_started > 0 && link.saved < newest_due_;
  if (!is_behind || not_captured(now) == 0) return;
  if (!link.saved) return log_warning("close: no step is known to be saved");
  const char* const where = link.durable >= link.saved ? "on storage" : "in memory";
  const auto missing = due_after(*link.saved);
  if (missing == 1)
    return log_warning(
        "close: the newest step known to be saved is {}, {}; step {}, which was due after it, is "
        "not",
        number(*link.saved), where, number(*newest_due_));
  log_warning(
      "close: the newest step known to be saved is {}, {}; {} steps that were due after it, the "
      "last of them {}, are not",
      number(*link.saved), where, missing ? std::to_string(*missing) : "the", number(*newest_due_));
}

Status SaveAccount::check_captured(const LinkCounters& link) const {
  const Stats now = stats(link);
  const std::uint64_t due = not_captured(now);
  if (now.saves_started > 0 || due == 0) return {};
  return fail(Errc::not_found,
              fmt::format("close: nothing is saved: {} steps were due, none was captured{}{}", due,
                          now.last_error.empty() ? "" : ": ", now.last_error));
}

Status SaveAccount::check_of_all(const LinkCounters& link, std::uint32_t ranks) const {
  if (ranks == 1 || stats_.saves_started == 0 || link.saved) return {};
  return fail(Errc::not_found,
              fmt::format("close: nothing is saved: {} captured {} of its steps, and no step was "
                          "captured by all {} ranks: do the others save?",
                          who_, stats_.saves_started, ranks));
}

}  // namespace ckpt::client
