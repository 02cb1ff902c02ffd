// The end of a job on this node: closed in order, without a trainer for long, or flushed before the
// daemon's end.
//
// Closed in order: when all ranks have closed and the newest step is stored, the coordinator
// decrees the end, and each node frees its memory. The coordinator's node keeps the job until all
// others have answered that they heard it.
// Without a trainer on any node: for the idle limit nothing happens. Then all nodes ask for what is
// not on storage to be stored, where there is a directory, and each frees its memory when it is.
#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "node/job.hpp"

namespace ckpt::node {

namespace {

// For a node that does not answer that it heard the end: it may be lost.
constexpr Duration ended_linger = std::chrono::seconds(5);
// A flush before the end waits this long for captures that other ranks have not made yet.
constexpr Duration commit_patience = std::chrono::seconds(3);
// After so long without a flush under way, trainers capture again. An order comes within a second.
constexpr Duration idle_flush_patience = std::chrono::seconds(3);

}  // namespace

bool Job::is_copying_last() const {
  return storage_.second() != nullptr && storage_.second()->is_finishing();
}

bool Job::is_finished() const {
  if (ranks_.have_trainer() || is_copying_last()) return false;
  const Time now = facts_.clock().now();
  if (facts_.ended_at) {
    const Duration since = now - *facts_.ended_at;
    if (facts_.shape.nodes.size() == 1 || facts_.secret.empty() || since >= ended_linger)
      return true;
    // Others than the node that decreed the end only let that one know.
    if (facts_.decree.coordinator != facts_.node)
      return since >= facts_.context.options.heartbeat_interval;
    return std::all_of(facts_.shape.nodes.begin(), facts_.shape.nodes.end(),
                       [this](const Node& node) {
                         return node.name == facts_.node ||
                                peers_.heard_nodes().has_ended(node.name, facts_.shape.run);
                       });
  }
  const IdleWatch& idle = sessions_.idle();
  // Its first trainer was refused: it holds a name, and nothing else.
  if (ranks_.empty() && slots_.bytes() == 0) return idle.since(now) >= ended_linger;
  return idle.is_expired(now) && (is_flushed(false) || idle.is_given_up(now));
}

// Trainers of other nodes count: the steps on this node are theirs, too.
void Job::note_idle() {
  const Time now = facts_.clock().now();
  IdleWatch& idle = sessions_.idle();
  const bool is_attended =
      facts_.decree.has_trainer && facts_.decree.coordinator == peers_.coordinator();
  if (ranks_.have_trainer() || is_attended) idle.seen(now);
  const bool was_expired = is_expired_;
  is_expired_ = !facts_.ended_at && idle.is_expired(now);
  if (!is_expired_ || was_expired) return;
  storage_.finish_copies();
  log_info(
      "job={} has had no trainer for {}: {}", facts_.shape.job, idle.limit_text(),
      captures_.is_flushed(false) ? "its memory is freed" : "its steps are stored, then freed");
  if (peers_.is_coordinator()) storage_.read_catalog();  // Another daemon may have stored it.
}

std::string IdleWatch::limit_text() const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit_).count();
  if (seconds >= 7200) return fmt::format("{} h", seconds / 3600);
  return seconds >= 120 ? fmt::format("{} min", seconds / 60) : fmt::format("{} s", seconds);
}

void Job::free_memory(const std::string& why) {
  const StorageStanding all = storage_standing();
  const std::string what = fmt::format("job={} memory freed: {} ({})", facts_.shape.job,
                                       arena::human_bytes(slots_.bytes()), why);
  if (!all.lost) {
    log_info("{}", what);
  } else if (is_expired_ && !facts_.directory.empty()) {
    log_error("{}: step {} IS LOST on this node, it could not be stored in {}: {}", what,
              number(all.lost->step), facts_.directory,
              storage_.failures().count() > 0 ? storage_.failures().newest()
                                              : "some node's part of it is missing");
  } else {
    log_warning("{}: step {} was in memory alone", what, number(all.lost->step));
  }
  replication_.memory_freed();
  healing_.memory_freed();
  for (const std::weak_ptr<LentStep>& each : lent_)
    if (const std::shared_ptr<LentStep> lent = each.lock()) lent->memory_freed();
  slots_.free_all();
  facts_.committed.reset();
}

bool Job::is_held_here(format::StepId at) const {
  bool is_held = false;
  slots_.for_each_sealed([&](const arena::Slot& slot, bool) {
    is_held = is_held || (slot.id().at == at && !slot.is_retiring());
  });
  return is_held;
}

bool Job::is_flushed(bool wait_for_commits) const {
  if (!captures_.is_flushed(wait_for_commits)) return false;
  return last_look_.is_done(facts_.committed && is_held_here(*facts_.committed));
}

StorageStanding Job::storage_standing() const {
  StorageStanding standing;
  standing.job = facts_.shape.job;
  standing.directory = facts_.directory;
  standing.durable = facts_.durable;
  standing.has_trainer = has_trainer();
  if (const SecondPlace* second = storage_.second(); second && peers_.is_coordinator()) {
    standing.second_directory = second->directory();
    standing.second_newest = second->newest();
  }
  slots_.for_each_sealed([&](const arena::Slot& slot, bool) {
    const format::StepId at = slot.id().at;
    if (slot.is_retiring() || facts_.is_fenced(at)) return;
    const bool is_stored = facts_.last_look != agree::LastLookState::gone;
    if (is_stored && facts_.durable && at <= *facts_.durable) return;
    if (!standing.lost || at > *standing.lost) standing.lost = at;
  });
  return standing;
}

void Job::want_flush(bool is_wanted) {
  is_flush_wanted_ = is_wanted;
  touch();
}

namespace {

// `awaited`: the step that is not stored; none: the capture of one is not over.
std::string describe(const StorageStanding& standing, std::optional<format::StepId> awaited) {
  if (!awaited) {
    return standing.durable ? fmt::format("a capture is under way, and step {} is durable",
                                          number(standing.durable->step))
                            : std::string("a capture is under way, and no step is durable");
  }
  const std::uint64_t lost = number(awaited->step);
  if (!standing.durable) return fmt::format("step {} is not durable, no step is", lost);
  if (standing.lost && *standing.lost <= *standing.durable)
    return fmt::format("step {} was removed from {}, and is not durable again", lost,
                       standing.directory);
  return fmt::format("step {} is not durable, step {} is", lost, number(standing.durable->step));
}

}  // namespace

// Storage may fail, or the committed step may have lost a part with another daemon, or the end
// waits for another job. A job that captured nothing until the deadline would lose all that it
// trains. A newer committed step can be stored instead.
bool Job::has_idle_flush(Time now) {
  CKPT_ASSERT(flush_moved_at_ <= now);
  const bool has_last_capture = captures_.is_stored() && !captures_.is_flushed(false);
  if (!is_flush_wanted_ || facts_.decree.flush || has_last_capture) flush_moved_at_ = now;
  return now - flush_moved_at_ >= idle_flush_patience;
}

Task<void> Job::flush(Time deadline, std::uint32_t failures_max) {
  const std::shared_ptr<Job> self = shared_from_this();
  Clock& clock = facts_.clock();
  // A step that other ranks will never capture stays uncommitted, and is not waited for.
  const Time commits_until = std::min(deadline, clock.after(commit_patience));
  const std::uint64_t failed_before = storage_.failures().count();
  while (!is_flushed(clock.now() < commits_until)) {
    const bool has_failed = storage_.failures().count() - failed_before >= failures_max;
    const bool is_given_up = facts_.context.captures == CapturePermission::refused;
    const bool is_refused = storage_.failures().are_refusals();  // Nothing would come of waiting.
    // A newer step may take its place: one that a trainer captures, or that was captured before.
    const bool may_be_replaced = facts_.decree.has_trainer || clock.now() < commits_until;
    const std::string lost = may_be_replaced ? std::string() : facts_.decree.lost_part;
    if (has_failed || is_refused || is_given_up || !lost.empty() || clock.now() >= deadline) {
      const StorageStanding all = storage_standing();
      // This node may hold nothing of a committed step that others store.
      const bool is_others = !all.lost && !captures_.is_stored();
      const auto awaited = is_others ? facts_.committed : all.lost;
      const bool has_tried = is_refused || storage_.failures().count() > failed_before;
      const std::string why = !lost.empty() ? lost
                              : has_tried   ? storage_.failures().newest()
                              : is_given_up ? "the flush was given up"
                                            : "not done in time";
      co_return fail(has_failed || is_refused ? Errc::io : Errc::unavailable,
                     fmt::format("flush job {}: {}: {}", all.job, describe(all, awaited), why));
    }
    auto woken = co_await changed_.wait_until(deadline);
    if (woken) continue;
    if (is_flushed(false)) break;  // The engine has let the job go: it had ended, or was dropped.
    co_return fail(std::move(woken).error());
  }
  co_return Status{};
}

}  // namespace ckpt::node
