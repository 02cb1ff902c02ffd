// One look at everything, in this order:
//  1. Adopt newer facts from reports: history, counts, the newest commit and Start.
//  2. Begin: a group of trainers that waits to restore or to start fresh.
//  3. Commit, and give up steps that a rank skipped.
//  4. Capture by time: when the interval has passed, order the next step.
//  5. Flush: order one, follow it, hand it to the engine for publishing.
//  6. End: when all ranks have closed.
#include "agree/coordinator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "agree/commit_rule.hpp"
#include "agree/successor.hpp"
#include "base/assert.hpp"
#include "base/change_checked.hpp"
#include "base/log.hpp"

namespace ckpt::agree {

namespace {

template <class T>
void raise(std::optional<T>& value, const std::optional<T>& other) {
  if (other && (!value || *other > *value)) value = other;
}

// The first rank without a trainer, while others train.
std::optional<std::uint32_t> rank_away(const ClusterView& view) {
  std::optional<std::uint32_t> away;
  bool is_training = false;
  const std::vector<RankView> ranks = ranks_of(view);
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const format::RankReport* report = ranks[rank].report;
    if (report == nullptr && !away) away = rank;
    is_training =
        is_training || (report != nullptr && report->phase == format::StartPhase::running);
  }
  return is_training ? away : std::nullopt;
}

bool are_all_closing(const ClusterView& view) {
  const std::vector<RankView> ranks = ranks_of(view);
  return std::all_of(ranks.begin(), ranks.end(), [](const RankView& rank) {
    return rank.report != nullptr && rank.report->is_closing;
  });
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options)
    : options_(std::move(options)),
      random_(options_.boot),
      flush_backoff_(options_.flush_retry_after),
      captures_(options_.capture_notice) {}

void Coordinator::check_invariants() const {
  CKPT_ASSERT(flush_parts_.has_value() == decree_.flush.has_value());
  if (flush_parts_) CKPT_ASSERT(flush_parts_->order() == decree_.flush);
  if (publishing_) {
    CKPT_ASSERT(decree_.flush.has_value());
    CKPT_ASSERT(publishing_->order.flush_id == decree_.flush->flush_id);
    CKPT_ASSERT(publishing_->digests.size() == publishing_->order.writers.size());
  }
  if (unrecorded_) {
    // A refusal brings these back.
    CKPT_ASSERT(unrecorded_->flush_parts.has_value() == unrecorded_->before.flush.has_value());
    if (unrecorded_->publishing) CKPT_ASSERT(unrecorded_->before.flush.has_value());
  }
  CKPT_ASSERT(!decree_.ended || !decree_.flush);
  CKPT_ASSERT(std::is_sorted(decree_.restore_counts.begin(), decree_.restore_counts.end()));
  CKPT_ASSERT(std::is_sorted(decree_.live.begin(), decree_.live.end()));
}

bool Coordinator::decide(const ClusterView& view, Time now) {
  return change_checked(*this, [&] { return decide_all(view, now); });
}

bool Coordinator::decide_all(const ClusterView& view, Time now) {
  const format::Decree before = decree_;
  decree_.job = view.shape.job;
  decree_.run = view.shape.run;
  decree_.coordinator = options_.node;
  decree_.coordinator_boot = options_.boot;
  decree_.incarnation = view.shape.incarnation;
  decree_.members = view.members;
  needs_published_ = false;
  adopt_reports(view);          // Step 1.
  decide_beginning(view, now);  // Step 2.
  decide_commits(view, now);    // Step 3.
  decide_captures(view, now);   // Step 4.
  notice_new_trainers(view);
  const bool was_final = std::exchange(is_final_, is_flush_wanted(view));
  if (is_final_ && !was_final) forget_flush_pause();  // Somebody waits for it from here on.
  decide_flush(view, now);                            // Step 5.
  decide_end(view);                                   // Step 6.
  describe(view, now);
  if (decree_ == before) return false;
  ++decree_.sequence;
  CKPT_ASSERT(is_successor(before, decree_));
  return true;
}

void Coordinator::adopt_reports(const ClusterView& view) {
  for (const format::NodeReport& node : view.reports) {
    if (node.history != decree_.history) decree_.history = merge(decree_.history, node.history);
    if (node.restore_counts != decree_.restore_counts)
      decree_.restore_counts = merge(decree_.restore_counts, node.restore_counts);
  }
  const auto adopt = [&](std::optional<format::StepId>& newest, format::StepId at) {
    if (!is_fenced(decree_.history, at)) raise(newest, std::optional(at));
  };
  for (const format::NodeReport& node : view.reports) {
    if (node.committed) adopt(decree_.committed, *node.committed);
    for (const format::StepId& at : node.durable) adopt(decree_.durable, at);
  }
  decree_.start = newest_start(view, decree_.start);
  adopt_published(view);
  clear_of_suspicion(view);
}

// The newest step that storage has is durable, whoever stored it.
void Coordinator::adopt_published(const ClusterView& view) {
  foreign_trouble_.clear();
  const std::uint64_t running = running_timeline(view);
  const DamagedShards damaged = damaged_shards(view);
  for (const PublishedStep& step : view.published.value_or(std::vector<PublishedStep>{})) {
    if (damaged.contains(step.at)) continue;
    // Only a daemon that does not know us can have begun a later timeline in our directory. Taken
    // for ours, its step would look newer than all steps that we still have to store.
    if (running == 0 || step.at.timeline <= running) {
      if (!is_fenced(decree_.history, step.at)) raise(decree_.durable, std::optional(step.at));
    } else {
      foreign_trouble_ = fmt::format(
          "another daemon stores steps of its own of this job in the same directory (timeline {} "
          "step {}), after which those of this one are not stored there: end one of the two "
          "daemons, or give them different directories; `ckpt cp memory:{} PLACE` saves the newest "
          "step of this one elsewhere, before a trainer starts again",
          step.at.timeline, number(step.at.step), view.shape.job);
    }
  }
  raise(flush_history_.newest, decree_.durable);
}

// Clears the steps after whose restore training got on: a step of the new timeline was committed,
// or a trainer confirmed it, or all ranks closed (one alone may close because another died). The
// history names these steps, since a daemon that was started in mid-run knows no Start.
void Coordinator::clear_of_suspicion(const ClusterView& view) {
  std::set<std::uint64_t> got_on;
  if (decree_.committed) got_on.insert(decree_.committed->timeline);
  const bool are_closing = are_all_closing(view);
  for (const RankView& rank : ranks_of(view)) {
    if (rank.report == nullptr) continue;
    if (rank.report->restored_ok || are_closing) got_on.insert(rank.report->timeline);
  }
  for (const std::uint64_t timeline : got_on) {
    const auto base = base_of(decree_.history, timeline);
    for (format::RestoreCount& count : decree_.restore_counts) {
      if (base == count.at) count.times = 0;
    }
  }
}

// The timeline of the ranks that train now; 0: no rank has begun.
std::uint64_t Coordinator::running_timeline(const ClusterView& view) const {
  std::uint64_t timeline =
      decree_.start && decree_.start->outcome.is_go() ? decree_.start->timeline : 0;
  for (const RankView& rank : ranks_of(view)) {
    if (rank.report != nullptr) timeline = std::max(timeline, rank.report->timeline);
  }
  return timeline;
}

// The timeline in which steps are committed and captured now; 0: none.
std::uint64_t Coordinator::committing_timeline(const ClusterView& view) const {
  if (decree_.start && decree_.start->outcome.is_pending())
    return 0;  // All steps are still candidates.
  std::uint64_t timeline = 0;
  for (const RankView& rank : ranks_of(view)) {
    if (rank.report == nullptr) continue;
    timeline = std::max(timeline, rank.report->timeline);
  }
  // A failed restore begins nothing: ranks that trained before train on in their old timeline.
  if (decree_.start && !decree_.start->outcome.has_failed())
    timeline = std::max(timeline, decree_.start->timeline);
  return timeline;
}

void Coordinator::decide_commits(const ClusterView& view, Time now) {
  const std::uint64_t timeline = committing_timeline(view);
  if (timeline == 0) return;
  if (decree_.start && decree_.start->outcome.is_go())
    raise(decree_.committed, decree_.start->base);
  // A live node that has not reported yet may hold a step that a commit would free on all others.
  if (!view.unreported.empty()) return;
  const auto newest = newest_committable(view, timeline);
  if (newest && (!decree_.committed || *newest > *decree_.committed)) {
    CKPT_ASSERT(newest->timeline == timeline);
    decree_.committed = newest;
    captures_.step_committed();
  }
  // One that may still come may know of a commit that we have missed.
  if (view.reports.size() < view.expected.size()) return;
  const std::vector<format::StepId> dropped = given_up(view, timeline, decree_.committed);
  const bool has_new = std::any_of(dropped.begin(), dropped.end(), [&](const format::StepId& at) {
    return std::find(decree_.dropped.begin(), decree_.dropped.end(), at) == decree_.dropped.end();
  });
  if (has_new) {
    const auto ordered = captures_.after_skip(view, timeline, decree_.next_capture, now);
    decree_.next_capture = ordered.value_or(decree_.next_capture);
  }
  // A given-up step is repeated as long as a node still holds it, then forgotten.
  decree_.dropped = dropped;
}

void Coordinator::decide_captures(const ClusterView& view, Time now) {
  const std::uint64_t timeline = committing_timeline(view);
  if (timeline == 0) return;
  const auto ordered = captures_.by_time(view, timeline, decree_.next_capture, now);
  decree_.next_capture = ordered.value_or(decree_.next_capture);
}

void Coordinator::decide_end(const ClusterView& view) {
  const bool is_flushed = !view.shape.has_storage || !decree_.committed ||
                          (decree_.durable && *decree_.durable >= *decree_.committed);
  const bool is_there = !view.shape.has_storage || !decree_.committed ||
                        view.last_look == LastLookState::there ||
                        (view.last_look == LastLookState::gone && !must_store_again(view));
  decree_.ended = are_all_closing(view) && is_flushed && is_there && !decree_.flush;
}

namespace {

// The ranks of a node that save nothing, and hold the steps of all others back.
std::string without_slots(const format::NodeReport& node) {
  std::string text;
  for (const format::RankReport& rank : node.ranks)
    if (rank.lacks_slots())
      text += fmt::format("{}rank {} {}", text.empty() ? "" : "; ", rank.rank, rank.failure);
  return text.empty() ? text : fmt::format("node {}: {}", node.node, text);
}

std::string without_slots(const ClusterView& view) {
  std::string text;
  for (const format::NodeReport& node : view.reports) {
    const std::string more = without_slots(node);
    if (!text.empty() && !more.empty()) text += "; ";
    text += more;
  }
  return text;
}

}  // namespace

void Coordinator::describe(const ClusterView& view, Time now) {
  decree_.has_trainer =
      std::any_of(view.reports.begin(), view.reports.end(),
                  [](const format::NodeReport& node) { return node.has_trainer; });
  decree_.live.clear();
  std::unordered_set<std::string_view> live;
  for (const format::NodeReport& report : view.reports) {
    decree_.live.push_back({report.node, report.boot});
    live.insert(report.node);
  }
  std::sort(decree_.live.begin(), decree_.live.end());
  std::vector<std::string> all;
  std::string lost;
  for (const Node& node : view.shape.nodes) {
    all.push_back(node.name);
    // A node that was never heard, and may still come, is not lost.
    const auto& expected = view.expected;
    if (!live.contains(node.name) &&
        std::find(expected.begin(), expected.end(), node.name) == expected.end()) {
      lost += (lost.empty() ? "" : ", ") + node.name;
    }
  }
  const std::size_t wanted =
      std::min<std::size_t>(view.shape.replicas, domain_count(view.shape, all));
  const std::size_t copies = required_copies(view);
  decree_.degraded =
      lost.empty() ? "" : fmt::format("lost: {}; steps get {} of {} copies", lost, copies, wanted);
  if (const auto away = rank_away(view); away && !lost.empty())
    decree_.degraded += fmt::format("; no step is committed while rank {} is away", *away);
  decree_.lost_part = lost_part(view);
  const std::string stuck = flush_parts_ ? flush_parts_->stuck() : std::string();
  for (const std::string& trouble :
       {without_slots(view), silent_nodes(view, now), silent_storage(view, now),
        thin_base(view, copies), flush_trouble_, stuck, slow_flush(view, now), foreign_trouble_,
        view.holes}) {
    if (trouble.empty()) continue;
    decree_.degraded += (decree_.degraded.empty() ? "" : "; ") + trouble;
  }
}

std::string Coordinator::silent_storage(const ClusterView& view, Time now) const {
  if (!view.shape.has_storage || !is_storage_late(view, now)) return {};
  return "storage does not answer: no step is stored";
}

// Names the live nodes that have not reported for longer than a change of the coordinator takes.
std::string Coordinator::silent_nodes(const ClusterView& view, Time now) {
  if (view.unreported.empty()) {
    unreported_since_.reset();
    return {};
  }
  if (!unreported_since_) unreported_since_ = now;
  if (now - *unreported_since_ < options_.collect_grace) return {};
  return fmt::format("no step is committed: node {} is heard, but does not report to node {}",
                     view.unreported.front(), options_.node);
}

// The base of a restore counts as committed, since there is nothing newer. It may have come from
// its last copy.
std::string Coordinator::thin_base(const ClusterView& view, std::size_t wanted) const {
  const bool has_base = decree_.start && decree_.start->outcome.is_go() && decree_.start->base;
  if (!has_base || decree_.committed != decree_.start->base) return {};
  const format::StepId base = *decree_.start->base;
  if (decree_.durable && *decree_.durable >= base) return {};
  std::size_t fewest = wanted;
  for (const auto& copies : copies_of_any(view, base))
    fewest = std::min(fewest, copies ? copies->nodes.size() : 0);
  if (fewest >= wanted) return {};
  return fmt::format("step {}, from which training went on, has {} of {} copies", number(base.step),
                     fewest, wanted);
}

void Coordinator::step_down() {
  check_invariants();
  // The sequence goes on: nodes take a lower one of this boot for an old decree.
  const std::uint64_t sequence = decree_.sequence;
  decree_ = format::Decree{};
  decree_.sequence = sequence;
  flush_history_ = FlushHistory{};
  flush_parts_.reset();
  publishing_.reset();
  hung_writers_.clear();
  asked_since_.reset();
  storage_asked_at_.reset();
  forget_flush_pause();
  sessions_.clear();
  flush_trouble_.clear();
  foreign_trouble_.clear();
  needs_published_ = false;
  is_final_ = false;
  captures_.forget();
  unreported_since_.reset();
  unrecorded_.reset();
  check_invariants();
}

}  // namespace ckpt::agree
