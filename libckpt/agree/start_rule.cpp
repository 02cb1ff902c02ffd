#include "agree/start_rule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "agree/newest_seen.hpp"
#include "agree/source_vote.hpp"
#include "base/assert.hpp"
#include "base/counted.hpp"

namespace ckpt::agree {

namespace {

using format::Start;
using format::StartOutcome;
using format::StartPhase;

bool is_in(const Start& start, const format::RankReport& rank) {
  return rank.rank < start.sessions.size() && start.sessions[rank.rank] == rank.session;
}

bool answers(const Start& start, const format::RankReport& rank) {
  return rank.start_id == start.start_id && rank.attempt == start.attempt;
}

// The Start is over, and this rank's node does not know that yet: its report is older.
bool is_behind(const StartState& state, const format::RankReport& rank) {
  if (!state.current || !is_in(*state.current, rank)) return false;
  const bool is_over = !state.current->outcome.is_pending();
  // `ready`, `failed` and `refused` name the Start they answer; the others name the last that
  // ended.
  const bool is_answering = rank.phase == StartPhase::ready || rank.phase == StartPhase::failed ||
                            rank.phase == StartPhase::refused;
  return is_over && (is_answering || rank.start_id != state.current->start_id);
}

std::string missing_ranks(const std::vector<RankView>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].report == nullptr) return fmt::format("rank {} is not attached", rank);
    if (ranks[rank].is_doubled) return fmt::format("rank {} is attached on two nodes", rank);
  }
  return {};
}

std::uint64_t highest_timeline(const ClusterView& view, const StartState& state) {
  std::uint64_t highest = newest_timeline(state.history);
  if (state.current) highest = std::max(highest, state.current->timeline);
  for (const format::NodeReport& node : view.reports) {
    for (const format::Holding& holding : node.holdings) {
      highest = std::max(highest, holding.id.at.timeline);
    }
    for (const format::RankReport& rank : node.ranks) highest = std::max(highest, rank.timeline);
    // The coordinator that began it may be gone, with all that its memory had.
    if (node.committed) highest = std::max(highest, node.committed->timeline);
    for (const format::StepId& at : node.durable) highest = std::max(highest, at.timeline);
  }
  for (const PublishedStep& step : view.published.value_or(std::vector<PublishedStep>{})) {
    highest = std::max(highest, step.at.timeline);
  }
  return highest;
}

}  // namespace

std::uint64_t unclaimed_distance(Random& random) {
  return random.next() >> 32;
}

namespace {

Start new_start(const ClusterView& view, const StartState& state,
                const std::vector<RankView>& ranks, Random& random) {
  Start start;
  do {
    start.start_id = random.next();
  } while (start.start_id == 0);
  start.attempt = 1;
  start.timeline = highest_timeline(view, state) + 1;
  if (!view.shape.has_storage) start.timeline += unclaimed_distance(random);
  for (const RankView& rank : ranks) start.sessions.push_back(rank.report->session);
  return start;
}

void set_outcome(Start& start, const Vote& vote) {
  start.reason = vote.reason;
  start.base = vote.chosen;
  start.digests = vote.digests;
  start.holders = vote.holders;
  start.from_storage = vote.from_storage;
  start.newest_seen.reset();
  start.outcome = StartOutcome();
  if (vote.chosen) return;
  // Nothing to copy: all ranks begin at the beginning.
  const bool is_fresh = vote.error == Errc::not_found;
  start.outcome = is_fresh ? StartOutcome::go() : StartOutcome::failed(vote.error);
}

// An error text if the ranks did not all ask for the same step from the same place; else empty.
std::string wishes_differ(const std::vector<RankView>& ranks) {
  const format::RankReport& first = *ranks.front().report;
  for (const RankView& rank : ranks) {
    const format::RankReport& other = *rank.report;
    if (other.wanted != first.wanted)
      return fmt::format("rank 0 and rank {} asked for different steps", other.rank);
    if (other.source != first.source)
      return fmt::format(
          "rank 0 asked for a step from {}, and rank {} from {}: all ranks choose "
          "the same source",
          name_of(first.source), other.rank, name_of(other.source));
  }
  return {};
}

// The newest stored step that any node knows and that was not abandoned.
std::optional<format::StepId> newest_stored(const ClusterView& view, const History& history) {
  std::optional<format::StepId> newest;
  for (const format::NodeReport& node : view.reports) {
    for (const format::StepId& at : node.durable) {
      if (!is_fenced(history, at) && (!newest || at > *newest)) newest = at;
    }
  }
  return newest;
}

// Why the vote waits for storage; empty: it goes on, with memory alone if storage is late.
std::string wait_for_storage(const ClusterView& view, const StartState& state, const Vote& outcome,
                             const format::RankReport& wish) {
  if (view.published) return {};
  if (!state.is_storage_late) return "storage is being read";
  if (wish.source == SourceChoice::storage) return "storage, which was asked for, does not answer";
  if (!outcome.chosen) return "storage does not answer, and memory has no whole step";
  const auto stored = newest_stored(view, state.history);
  const bool is_settled = wish.wanted || wish.source == SourceChoice::memory;
  if (is_settled || !stored || *outcome.chosen >= *stored) return {};
  // Training from the older one would abandon steps that are safe.
  return fmt::format("storage, which has step {}, does not answer, and memory has step {}",
                     number(stored->step), number(outcome.chosen->step));
}

StartDecision begin_restore(const ClusterView& view, const StartState& state, Start start,
                            const std::vector<RankView>& ranks) {
  StartDecision decision;
  decision.needs_published = !view.published;
  VoteRules rules{std::nullopt, state.history, state.restore_counts};
  const format::RankReport& wish = *ranks.front().report;  // The others must wish the same.
  rules.wanted = wish.wanted;
  const std::string conflict = wishes_differ(ranks);
  if (!conflict.empty()) {
    start.outcome = StartOutcome::failed(Errc::invalid_argument);
    start.reason = conflict;
  } else {
    start.source = wish.source;
    Vote outcome = vote_from(wish.source, view, rules);
    decision.waiting = wait_for_storage(view, state, outcome, wish);
    if (!decision.waiting.empty()) return decision;
    if (!view.published) outcome.reason += "; storage did not answer, and was left out";
    set_outcome(start, outcome);
    if (start.base) start.newest_seen = newest_seen(view, state.history, *start.base);
    if (rules.wanted && !outcome.chosen) {
      // A rank that asked for one step must not begin from nothing instead.
      start.outcome = StartOutcome::failed(outcome.error);
    }
    decision.candidates = std::move(outcome.candidates);
  }
  decision.next = std::move(start);
  return decision;
}

// Storage has no step that a rank of another number of ranks could read by itself.
bool is_nothing_stored(const ClusterView& view, const History& history) {
  return std::ranges::all_of(
      view.published.value_or(std::vector<PublishedStep>{}),
      [&](const PublishedStep& step) { return is_fenced(history, step.at); });
}

std::string failure_of(const format::RankReport& rank) {
  return fmt::format("rank {}: {}", rank.rank, rank.failure);
}

// `next` is the vote after this rank's failure. Says what the vote cannot know.
void add_failure(Start& next, const format::RankReport& failed, bool is_nothing_stored) {
  // The bad copy was the last one of any step. As it stands, trainers would begin as a new job.
  const bool begins_anew = next.outcome.is_go();
  // Another number of ranks saved the step, and memory still has some of its shards. As it stands,
  // trainers would look for the step on storage, which has none.
  const bool was_in_memory_alone =
      next.outcome == StartOutcome::failed(Errc::unsupported) && is_nothing_stored;
  if (begins_anew || was_in_memory_alone) {
    // A copy of another node may come back with it.
    const bool is_away = was_in_memory_alone && failed.failure_code != Errc::corruption;
    next.outcome = StartOutcome::failed(is_away ? Errc::unavailable : Errc::corruption);
    next.reason = "no good copy is left: " + failure_of(failed);
  } else if (next.outcome.error() == Errc::io) {
    // The vote knows that a copy could not be read, and the rank knows why.
    next.reason += "; " + failure_of(failed);
  }
}

// A copy that turned out bad is no longer reported, so the next vote does without it. A copy that
// is reported and yet cannot be fetched would be voted for again: hence the limit.
StartDecision try_again(const ClusterView& view, const StartState& state, Start start,
                        const std::vector<RankView>& ranks, const format::RankReport& failed) {
  StartDecision decision;
  if (start.attempt < start_attempts_max) {
    ++start.attempt;
    decision = begin_restore(view, state, std::move(start), ranks);
    if (decision.next) add_failure(*decision.next, failed, is_nothing_stored(view, state.history));
  } else {
    start.outcome = StartOutcome::failed(Errc::unavailable);
    start.reason = fmt::format("given up after {} attempts: {}", start.attempt, failure_of(failed));
    decision.next = std::move(start);
  }
  return decision;
}

// A Start is under way and every rank is in it.
StartDecision continue_start(const ClusterView& view, const StartState& state,
                             const std::vector<RankView>& ranks) {
  StartDecision decision;
  Start start = *state.current;
  std::size_t ready = 0;
  for (const RankView& rank : ranks) {
    const bool is_answer = answers(start, *rank.report);
    if (is_answer && rank.report->phase == StartPhase::refused) {
      const Errc code = rank.report->failure_code;
      start.outcome = StartOutcome::failed(code == Errc{} ? Errc::invalid_argument : code);
      // The trainers put the code's words before the reason.
      std::string_view failure = rank.report->failure;
      if (const auto words = fmt::format("{}: ", to_string(code)); failure.starts_with(words))
        failure.remove_prefix(words.size());
      start.reason = fmt::format("rank {}: {}", rank.report->rank, failure);
      decision.next = std::move(start);
      return decision;
    }
    if (is_answer && rank.report->phase == StartPhase::failed) {
      return try_again(view, state, std::move(start), ranks, *rank.report);
    }
    if (is_answer && rank.report->phase == StartPhase::ready) {
      ++ready;
    } else if (decision.waiting.empty()) {
      decision.waiting = fmt::format("rank {} copies its shard", rank.report->rank);
    }
  }
  if (ready == ranks.size()) {
    start.outcome = StartOutcome::go();
    decision.next = std::move(start);
    decision.waiting.clear();
  }
  return decision;
}

struct Counts {          // Numbers of ranks.
  std::size_t open = 0;  // Have not begun.
  std::size_t fresh = 0, saves = 0, running = 0, in_current = 0;
};

bool is_open(const RankView& rank) {
  return rank.report->phase != StartPhase::idle && rank.report->phase != StartPhase::running;
}

Counts count_phases(const StartState& state, const std::vector<RankView>& ranks) {
  Counts counts;
  for (const RankView& rank : ranks) {
    if (rank.report == nullptr) continue;
    const StartPhase phase = rank.report->phase;
    counts.open += is_open(rank);
    counts.fresh += phase == StartPhase::fresh;
    counts.saves += phase == StartPhase::saves;
    counts.running += phase == StartPhase::running;
    counts.in_current += state.current && is_in(*state.current, *rank.report);
  }
  return counts;
}

// No rank begins. A rank that asked for a restore in mid-training may have given it up and train on
// as before. Then the Start ends, so that nothing waits for it.
StartDecision nobody_asks(const StartState& state, bool is_unfinished, bool all_run) {
  StartDecision decision;
  if (!is_unfinished || !all_run) return decision;
  decision.next = *state.current;
  decision.next->outcome = StartOutcome::failed(Errc::cancelled);
  decision.next->reason = "no rank restores any more";
  return decision;
}

// A first save without a restore. New steps would replace what is there, which a trainer that only
// lacks a line of code must not do.
StartDecision begin_unless_there(const ClusterView& view, const StartState& state, Start start,
                                 const std::vector<RankView>& ranks) {
  StartDecision decision = begin_restore(view, state, start, ranks);
  const bool is_late = !view.published && state.is_storage_late;
  if (!decision.next && is_late) {  // Memory has nothing, and training does not wait for storage.
    start.outcome = StartOutcome::go();
    start.reason = "all ranks began without restoring; storage did not answer, and was left out";
    decision.next = std::move(start);
    decision.waiting.clear();
  }
  if (!decision.next || !decision.next->base) return decision;
  Start refused = std::move(start);
  refused.outcome = StartOutcome::failed(Errc::invalid_argument);
  refused.reason = fmt::format(
      "the job has step {}, and no rank asked for it: restore before the first save, or call "
      "start_fresh() to begin without it",
      number(decision.next->base->step));
  decision.next = std::move(refused);
  return decision;
}

bool begins_without_restore(const RankView& rank) {
  return rank.report->phase == StartPhase::fresh || rank.report->phase == StartPhase::saves;
}

// Names some ranks that restore, and others that begin without a restore.
std::string named_difference(const std::vector<RankView>& ranks) {
  const auto without = std::find_if(ranks.begin(), ranks.end(), begins_without_restore);
  const auto restores = std::find_if_not(ranks.begin(), ranks.end(), begins_without_restore);
  CKPT_ASSERT(without != ranks.end());
  CKPT_ASSERT(restores != ranks.end());
  return fmt::format("rank {} restores, and rank {} {} without: all ranks restore, or none",
                     restores->report->rank, without->report->rank,
                     without->report->phase == StartPhase::saves ? "saved" : "begins");
}

// Every rank is there, none is in a Start, and all have asked to begin.
StartDecision begin_together(const ClusterView& view, const StartState& state, bool may_wait,
                             const std::vector<RankView>& ranks, const Counts& counts,
                             Random& random) {
  StartDecision decision;
  Start start = new_start(view, state, ranks, random);
  const std::size_t beginners = counts.fresh + counts.saves;
  if (counts.fresh == ranks.size()) {
    start.outcome = StartOutcome::go();
    start.reason = "all ranks began without restoring";
    decision.next = std::move(start);
  } else if (beginners > 0 && beginners < ranks.size()) {
    start.outcome = StartOutcome::failed(Errc::invalid_argument);
    start.reason = named_difference(ranks);
    decision.next = std::move(start);
  } else if (may_wait) {
    decision.waiting = "a node of the list is not heard yet";
  } else if (beginners > 0) {
    return begin_unless_there(view, state, std::move(start), ranks);
  } else {
    return begin_restore(view, state, std::move(start), ranks);
  }
  return decision;
}

}  // namespace

StartDecision decide_start(const ClusterView& view, const StartState& state, bool may_wait,
                           Random& random) {
  const std::vector<RankView> ranks = ranks_of(view);
  const Counts counts = count_phases(state, ranks);
  const bool is_unfinished = state.current && state.current->outcome.is_pending();
  if (counts.open == 0) return nobody_asks(state, is_unfinished, counts.running == ranks.size());

  StartDecision decision;
  decision.waiting = missing_ranks(ranks);
  if (!decision.waiting.empty()) return decision;
  if (is_unfinished && counts.in_current == ranks.size()) return continue_start(view, state, ranks);
  for (const RankView& rank : ranks) {
    if (!is_behind(state, *rank.report)) continue;
    decision.waiting =
        fmt::format("rank {} does not know the last decision yet", rank.report->rank);
    return decision;
  }
  if (counts.open < ranks.size()) {
    // Some ranks begin and others train. A rank that comes late to a Start that went gets the same
    // one. A rank that was started again alone has to wait for the others.
    const auto late = std::find_if_not(ranks.begin(), ranks.end(), is_open);
    const bool trains = late->report->phase == StartPhase::running;
    decision.waiting = fmt::format(
        "rank {} {} ({} of {})", late->report->rank,
        trains ? "trains, and has not asked to restore" : "has not asked to restore or to begin",
        ranks.size() - counts.open, counted(ranks.size(), "rank"));
    return decision;
  }
  return begin_together(view, state, may_wait, ranks, counts, random);
}

std::optional<std::uint64_t> gone_in_timeline(const ClusterView& view, const Start& start) {
  for (const RankView& rank : ranks_of(view)) {
    if (rank.report == nullptr || rank.report->phase != StartPhase::running) continue;
    if (rank.report->start_id == start.start_id) return rank.report->timeline;
  }
  return std::nullopt;
}

bool are_all_in(const ClusterView& view, const format::Start& start) {
  const std::vector<RankView> ranks = ranks_of(view);
  return std::all_of(ranks.begin(), ranks.end(), [&](const RankView& rank) {
    return rank.report != nullptr && is_in(start, *rank.report);
  });
}

format::SharedStart newer(format::SharedStart first, const format::SharedStart& second) {
  if (!second || first == second) return first;
  const auto age = [](const Start& start) {
    return std::tuple(start.timeline, !start.outcome.is_pending(), start.attempt);
  };
  if (!first || age(*second) > age(*first)) return second;
  return first;
}

format::SharedStart newest_start(const ClusterView& view, format::SharedStart own) {
  format::SharedStart newest = std::move(own);
  for (const format::NodeReport& node : view.reports) newest = newer(std::move(newest), node.start);
  return newest;
}

}  // namespace ckpt::agree
