// Starts, as the coordinator of a job decides, records and refuses them.
#include <fmt/format.h>

#include <algorithm>

#include "agree/coordinator.hpp"
#include "base/assert.hpp"
#include "base/change_checked.hpp"
#include "base/log.hpp"

namespace ckpt::agree {

namespace {

constexpr std::uint32_t prompt_attempts = 4;

}  // namespace

// The first attempts of a Start follow one another at once, since there are other copies. Later
// ones give a peer time to come back.
bool Coordinator::is_too_soon(const format::Start& next, Time now) const {
  const bool is_same = decree_.start && decree_.start->start_id == next.start_id;
  const bool is_retry = is_same && next.attempt > prompt_attempts && next.outcome.is_pending();
  return is_retry && now - attempted_at_ < options_.attempt_pause;
}

bool Coordinator::is_storage_late(const ClusterView& view, Time now) const {
  return !view.published && storage_asked_at_ &&
         now - *storage_asked_at_ >= options_.storage_patience;
}

// A coordinator that died between two messages may have sent its go to some of the nodes only. They
// report ranks that train; the other ranks follow them.
void Coordinator::adopt_go(const ClusterView& view, Time now) {
  if (!decree_.start || !decree_.start->outcome.is_pending()) return;
  const auto timeline = gone_in_timeline(view, *decree_.start);
  if (!timeline) return;
  format::Start start = *decree_.start;
  start.outcome = format::StartOutcome::go();
  start.timeline = *timeline;  // It may have been taken on storage after the vote.
  log_info("job={} start={:x} timeline={} went before node {} coordinated", view.shape.job,
           start.start_id, start.timeline, options_.node);
  begin(start, view, now);
}

void Coordinator::decide_beginning(const ClusterView& view, Time now) {
  adopt_go(view, now);
  has_trained_ = has_trained_ || std::ranges::any_of(ranks_of(view), [](const RankView& rank) {
                   return rank.report != nullptr && rank.report->last_seen;
                 });
  if (view.published) storage_asked_at_.reset();
  if (!view.published && !storage_asked_at_) storage_asked_at_ = now;
  StartState state{decree_.start, decree_.history, decree_.restore_counts,
                   is_storage_late(view, now)};
  const bool may_wait =
      !view.all_live && (!asked_since_ || now - *asked_since_ < options_.collect_grace);
  StartDecision decision = decide_start(view, state, may_wait, random_);
  needs_published_ = decision.needs_published;
  decree_.waiting = decision.waiting;
  if (decision.waiting.empty()) {
    asked_since_.reset();
  } else if (!asked_since_) {
    asked_since_ = now;
  }
  if (!decision.candidates.empty()) candidates_ = std::move(decision.candidates);
  if (!decision.next) return;
  const format::Start& start = *decision.next;
  if (is_too_soon(start, now)) {
    decree_.waiting = "a rank could not get its shard: tried again in a moment";
    return;
  }
  if (start.outcome.is_pending()) {
    is_vote_blind_ = !view.published;
    const bool is_new = !decree_.start || decree_.start->start_id != start.start_id;
    if (is_new) is_asked_again_ = is_asked_again(view, start);
    if (is_asked_again_) keep_newest_seen(*decision.next);
  }
  attempted_at_ = now;
  log_info(
      "job={} start={:x} attempt={} timeline={} base={} go={} {}", view.shape.job, start.start_id,
      start.attempt, start.timeline,
      start.base ? fmt::format("{}/{}", start.base->timeline, number(start.base->step)) : "none",
      start.outcome.is_go(), start.reason);
  unrecorded_.reset();
  if (start.outcome.is_go()) {
    UnrecordedStart unrecorded{
        start.start_id, decree_, flush_history_, flush_parts_, publishing_, {}, {}};
    unrecorded.is_blind = start.base && is_vote_blind_;
    begin(start, view, now);
    unrecorded.abandons = newest_abandoned(view, unrecorded.before);
    unrecorded_.emplace(std::move(unrecorded));
  } else {
    decree_.start = decision.next;
  }
}

// Whether the trainers of the newest Start want its step once more, and did not train since: they
// look at it in several restores, which is no failure of the step.
bool Coordinator::is_asked_again(const ClusterView& view, const format::Start& start) const {
  const format::SharedStart& before = decree_.start;
  if (!before || !before->outcome.is_go() || !start.base || before->base != start.base)
    return false;
  const std::vector<RankView> ranks = ranks_of(view);
  return !has_trained_ && std::ranges::all_of(ranks, [&](const RankView& rank) {
    return rank.report != nullptr && rank.report->start_id == before->start_id;
  });
}

// The restore before has begun a timeline since, which fenced the lost steps. They are lost all the
// same, until training comes to another one.
void Coordinator::keep_newest_seen(format::Start& start) const {
  const format::SharedStart& before = decree_.start;
  CKPT_ASSERT(start.base.has_value());
  if (!before || before->base != start.base || start.newest_seen > start.base->step) return;
  start.newest_seen = std::max(start.newest_seen, before->newest_seen);
}

// Everything that the go of a Start changes in the decree.
void Coordinator::begin(const format::Start& start, const ClusterView& view, Time now) {
  CKPT_ASSERT(start.outcome.is_go());
  unrecorded_.reset();
  captures_.begin(start.base ? number(start.base->step) : 0, view.shape.save_mem_interval.time,
                  now);
  decree_.start = start;
  const bool was_fenced = start.base && is_fenced(decree_.history, *start.base);
  decree_.history = merge(decree_.history, {format::TimelineStart{start.timeline, start.base}});
  CKPT_ASSERT(!start.base || was_fenced || !is_fenced(decree_.history, *start.base));
  decree_.dropped.clear();
  decree_.next_capture = Step{};
  if (start.base) {
    auto& counts = decree_.restore_counts;
    auto count = std::find_if(counts.begin(), counts.end(),
                              [&](const format::RestoreCount& c) { return c.at == start.base; });
    if (count == counts.end()) count = counts.insert(counts.end(), {*start.base, 0});
    if (!is_asked_again_) ++count->times;
    std::sort(counts.begin(), counts.end());
    // All steps that were committed or stored above the base are abandoned from here on.
    decree_.committed = start.base;
    if (decree_.durable && is_fenced(decree_.history, *decree_.durable)) decree_.durable.reset();
    flush_history_.newest.reset();
    adopt_published(view);  // The base is on storage, perhaps, and needs no second flush.
  }
  is_asked_again_ = has_trained_ = false;
  // A flush of an abandoned timeline must not be published over this one. Why it failed, and for
  // how long it was to wait, says nothing of this timeline's steps. They are still true of the
  // base.
  forget_flush();
  forget_flush_pause();
  const bool is_base_stored = decree_.durable >= not_stored_;
  if (!start.base || is_fenced(decree_.history, not_stored_) || is_base_stored)
    flush_trouble_.clear();
}

// The newest stored step that the history abandons now, and did not before. Suspect steps are left
// out: they seem to do harm, and a risk that one comes back must not prevent the restore.
std::optional<format::StepId> Coordinator::newest_abandoned(const ClusterView& view,
                                                            const format::Decree& before) const {
  std::optional<format::StepId> newest;
  const DamagedShards damaged = damaged_for_restore(view);
  const auto look_at = [&](format::StepId at) {
    const auto shards = damaged.find(at);
    const bool is_damaged =
        shards != damaged.end() && std::ranges::any_of(shards->second, [](const auto& shard) {
          return shard.second != Errc::io;
        });
    if (is_damaged) return;
    const bool is_new = is_fenced(decree_.history, at) && !is_fenced(before.history, at);
    const bool is_bad = is_suspect(decree_.restore_counts, at);
    if (is_new && !is_bad && (!newest || at > *newest)) newest = at;
  };
  for (const PublishedStep& step : view.published.value_or(std::vector<PublishedStep>{}))
    look_at(step.at);
  if (before.durable) look_at(*before.durable);
  return newest;
}

const UnrecordedStart* Coordinator::unrecorded() const {
  const bool is_ours =
      unrecorded_ && decree_.start && decree_.start->start_id == unrecorded_->start_id;
  return is_ours ? &*unrecorded_ : nullptr;
}

void Coordinator::claimed(std::uint64_t start_id, std::uint64_t timeline) {
  check_invariants();
  if (unrecorded() == nullptr || unrecorded_->start_id != start_id) return;
  for (format::TimelineStart& begun : decree_.history) {
    if (begun.timeline == decree_.start->timeline) begun.timeline = timeline;
  }
  format::Start start = *decree_.start;
  start.timeline = timeline;
  decree_.start = std::move(start);
  check_invariants();
}

void Coordinator::sent(std::uint64_t start_id) {
  change_checked(*this, [&] {
    if (unrecorded_ && unrecorded_->start_id == start_id) unrecorded_.reset();
  });
}

void Coordinator::refuse(std::uint64_t start_id, const Error& error) {
  check_invariants();
  if (unrecorded() == nullptr || unrecorded_->start_id != start_id) return;
  format::Start start = *decree_.start;
  start.outcome = format::StartOutcome::failed(error.code());
  start.reason = error.message();
  const std::uint64_t sequence = decree_.sequence;
  decree_ = std::move(unrecorded_->before);
  decree_.sequence = sequence + 1;
  decree_.start = std::move(start);
  CKPT_ASSERT(decree_.start->outcome.has_failed());
  flush_history_ = std::move(unrecorded_->flush_history);
  flush_parts_ = std::move(unrecorded_->flush_parts);
  publishing_ = std::move(unrecorded_->publishing);
  storage_asked_at_.reset();  // The next vote has patience with it again.
  unrecorded_.reset();
  check_invariants();
}

}  // namespace ckpt::agree
