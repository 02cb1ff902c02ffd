#include "agree/step_vote.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "agree/step_coverage.hpp"
#include "base/assert.hpp"
#include "base/counted.hpp"

namespace ckpt::agree {

namespace {

using Coverages = std::vector<std::pair<format::StepId, Coverage>>;  // Newest first.

std::string saved_by_text(std::size_t ranks) {
  return fmt::format("; {} saved it", counted(ranks, "rank"));
}

std::set<format::StepId, std::greater<>> all_steps(const ClusterView& view,
                                                   std::set<std::uint32_t>& other_worlds) {
  std::set<format::StepId, std::greater<>> steps;
  for (const format::NodeReport& node : view.reports) {
    for (const format::Holding& holding : node.holdings) {
      if (holding.world_size == view.shape.world_size) {
        steps.insert(holding.id.at);
      } else {
        other_worlds.insert(holding.world_size);
      }
    }
  }
  for (const PublishedStep& step : view.published.value_or(std::vector<PublishedStep>{})) {
    if (step.world_size == view.shape.world_size) {
      steps.insert(step.at);
    } else {
      other_worlds.insert(step.world_size);
    }
  }
  return steps;
}

bool is_damaged(const DamagedShards& damaged, format::StepId at) {
  const auto found = damaged.find(at);
  return found != damaged.end() && std::ranges::any_of(found->second, [](const auto& shard) {
           return shard.second != Errc::io;
         });
}

// The newest published step that another number of ranks saved and that was not abandoned.
const PublishedStep* newest_of_other_world(const ClusterView& view, const VoteRules& rules,
                                           const DamagedShards& passed_by = {}) {
  const PublishedStep* newest = nullptr;
  if (!view.published) return newest;
  for (const PublishedStep& step : *view.published) {
    if (step.world_size == view.shape.world_size || is_fenced(rules.history, step.at)) continue;
    const bool is_other = rules.wanted && step.at.step != *rules.wanted;
    if (is_other || is_damaged(passed_by, step.at)) continue;
    if (newest == nullptr || step.at > newest->at) newest = &step;
  }
  return newest;
}

bool is_suspect(const VoteRules& rules, format::StepId at) {
  return agree::is_suspect(rules.restore_counts, at);
}

// Why `at` cannot be chosen; empty: it can.
std::string objection(const VoteRules& rules, format::StepId at, const Coverage& coverage,
                      bool allow_suspect) {
  if (rules.wanted && at.step != *rules.wanted) {
    return fmt::format("rejected: step {} was asked for", number(*rules.wanted));
  }
  if (is_fenced(rules.history, at)) return "rejected: abandoned by a restore to an older step";
  if (!coverage.damage.empty()) {
    return fmt::format("rejected: no copy of it in memory, and {}", coverage.damage);
  }
  if (!coverage.missing.empty()) {
    return fmt::format("rejected: no copy of rank {} ({} of {} missing)", coverage.missing.front(),
                       coverage.missing.size(), counted(coverage.saved_by, "rank"));
  }
  if (rules.is_memory_only && !coverage.is_in_memory)
    return "rejected: some of its shards are on storage only";
  if (!allow_suspect && is_suspect(rules, at)) {
    return fmt::format(
        "rejected: restored {} times, and training never got on (no step committed, no "
        "restored_ok, no close)",
        restores_without_progress_max);
  }
  return {};
}

// The number of checkpoints on storage that cannot be trusted.
std::size_t damaged_count(const ClusterView& view, const DamagedShards& damaged) {
  std::size_t count = view.damaged_published;
  for (const PublishedStep& step : view.published.value_or(std::vector<PublishedStep>{}))
    count += is_damaged(damaged, step.at);
  return count;
}

// A step that storage has, and that could not be read. It may be newer than all that can be had.
struct Unreadable {
  Step step{};
  std::string why;
};
std::optional<Unreadable> newest_unreadable(const Vote& vote, const ClusterView& view,
                                            const VoteRules& rules) {
  std::optional<Unreadable> newest;
  const auto look_at = [&](Step step, const std::string& why) {
    if (rules.wanted && step != *rules.wanted) return;
    if (!newest || step > newest->step) newest = Unreadable{step, why};
  };
  for (const Candidate& candidate : vote.candidates) {
    const bool is_newer = !vote.chosen || candidate.at > *vote.chosen;
    if (candidate.is_unreadable && is_newer) look_at(candidate.at.step, candidate.verdict);
  }
  // The timeline of these is not known. Nodes know what was stored after a step in memory.
  const bool is_in_memory = vote.chosen && !vote.from_storage;
  for (const UnreadableStep& unreadable : view.unreadable_steps) {
    const bool was_stored = std::ranges::any_of(view.reports, [&](const format::NodeReport& node) {
      return std::ranges::any_of(node.durable, [&](const format::StepId& at) {
        return at.step == unreadable.step && !is_fenced(rules.history, at);
      });
    });
    const bool is_newer = !vote.chosen || unreadable.step > vote.chosen->step;
    if (is_newer && (!is_in_memory || was_stored)) look_at(unreadable.step, unreadable.why);
  }
  return newest;
}

std::string describe_damage(const ClusterView& view, std::size_t count) {
  const std::size_t misplaced = std::min(view.misplaced_published, count);
  const std::size_t damaged = count - misplaced;
  const auto noun = [](std::size_t number) { return number == 1 ? "checkpoint" : "checkpoints"; };
  std::string text;
  if (damaged > 0)
    text = fmt::format("{} {} on storage {} damaged", damaged, noun(damaged),
                       damaged == 1 ? "is" : "are");
  if (misplaced > 0)
    text +=
        fmt::format("{}{} {} on storage {}", text.empty() ? "" : ", ", misplaced, noun(misplaced),
                    misplaced == 1 ? "is a link or has another step's name"
                                   : "are links or have other steps' names");
  return text + " (see ckpt verify)";
}

std::string why_not(const Vote& vote, Step wanted) {
  for (const Candidate& candidate : vote.candidates) {
    if (candidate.at.step == wanted)
      return fmt::format("step {} cannot be restored: {}", number(wanted), candidate.verdict);
  }
  return fmt::format("step {} is not there; the newest seen is step {}", number(wanted),
                     number(vote.candidates.front().at.step));
}

std::string taken_by_others(const PublishedStep& step, const ClusterView& view) {
  return fmt::format(
      "step {}, was taken by {}, this job has {}: restore from its path, then start_fresh()",
      number(step.at.step), counted(step.world_size, "rank"), view.shape.world_size);
}

void explain_failure(Vote& vote, const std::set<std::uint32_t>& other_worlds,
                     const ClusterView& view, const VoteRules& rules,
                     const DamagedShards& damaged_shards) {
  const std::size_t damaged = damaged_count(view, damaged_shards);
  vote.error = Errc::not_found;
  if (!view.unreadable.empty()) {
    // The steps there are unknown: a trainer that begins from the first step might replace them.
    vote.error = Errc::unavailable;
    vote.reason = "no step is in memory, and storage cannot be read: " + view.unreadable;
  } else if (damaged > 0) {
    // Not "not found": a trainer would begin from the first step and replace it.
    vote.error = Errc::corruption;
    const bool has_others =
        view.published && view.published->size() + view.damaged_published > damaged;
    vote.reason = describe_damage(view, damaged) + ", and ";
    if (const PublishedStep* other = newest_of_other_world(view, rules, damaged_shards)) {
      vote.reason += "the newest of the others, " + taken_by_others(*other, view);
    } else {
      vote.reason += has_others ? "none of the others can be restored" : "no other can be restored";
    }
  } else if (const PublishedStep* other = newest_of_other_world(view, rules)) {
    // Not here either: no step of this number of ranks is left.
    vote.error = Errc::unsupported;
    vote.reason = "the newest checkpoint that is left, " + taken_by_others(*other, view);
  } else if (!vote.candidates.empty() && rules.wanted) {
    const auto is_it = [&](const Candidate& each) { return each.at.step == *rules.wanted; };
    if (!other_worlds.empty() && std::ranges::any_of(vote.candidates, is_it))
      vote.error = Errc::unsupported;
    vote.reason = why_not(vote, *rules.wanted);
  } else if (!other_worlds.empty()) {
    // Some of a step may come back with a node, unless none was ever whole.
    vote.error = has_committed(view) ? Errc::unsupported : Errc::not_found;
    vote.reason = fmt::format("the steps in memory were saved by {}, this job has {}",
                              counted(*other_worlds.begin(), "rank"), view.shape.world_size);
    if (!vote.candidates.empty())
      vote.reason +=
          fmt::format("; the newest seen is step {}, {}", number(vote.candidates.front().at.step),
                      vote.candidates.front().verdict);
    vote.reason += has_committed(view) ? ": start_fresh() begins without" : ": none was committed";
  } else if (!vote.candidates.empty()) {
    vote.reason =
        fmt::format("no step can be restored; newest seen: timeline {} step {}, {}",
                    vote.candidates.front().at.timeline, number(vote.candidates.front().at.step),
                    vote.candidates.front().verdict);
  } else {
    vote.reason = format::nothing_seen;
  }
}

// The step that was chosen is not restored, and no other one instead of it.
void reject_chosen(Vote& vote, Errc error, const char* verdict) {
  CKPT_ASSERT(vote.chosen.has_value());
  vote.chosen.reset();
  vote.digests.clear();
  vote.holders.clear();
  vote.from_storage = false;
  vote.error = error;
  for (Candidate& candidate : vote.candidates) {
    if (!candidate.is_chosen) continue;
    candidate.is_chosen = false;
    candidate.verdict = verdict;
  }
}

// Law: all ranks have the chosen step, and nothing is left of a step that was rejected.
void check(const Vote& vote) {
  const auto chosen = std::ranges::count_if(vote.candidates, &Candidate::is_chosen);
  CKPT_ASSERT(chosen == (vote.chosen ? 1 : 0));
  CKPT_ASSERT(vote.digests.size() == vote.holders.size());
  CKPT_ASSERT(vote.chosen.has_value() != vote.digests.empty());
  CKPT_ASSERT(!vote.chosen || vote.error == Errc{});
}

// A job went on with another number of ranks, and published a newer step. It must not go back to an
// older one in silence. A trainer that can restore another number of ranks takes the newer one.
void prefer_newer_of_other_world(Vote& vote, const ClusterView& view, const VoteRules& rules) {
  if (rules.is_memory_only) return;  // Nor is this silent: the caller has chosen memory.
  const PublishedStep* other = newest_of_other_world(view, rules);
  if (other == nullptr || !vote.chosen || !(other->at > *vote.chosen)) return;
  reject_chosen(vote, Errc::unsupported, "rejected: another number of ranks published a newer one");
  vote.reason = "the newest checkpoint, " + taken_by_others(*other, view);
}

// A history that cannot be read is not lost. A start records its timeline, which would replace what
// is there: so also a caller that names a step waits for it, and nobody begins anew beside it.
void refuse_beside_unreadable_history(Vote& vote, const ClusterView& view, const VoteRules& rules) {
  if (!view.is_history_unreadable || !rules.history.empty()) return;
  CKPT_ASSERT(!view.history_lost.empty());
  CKPT_ASSERT(vote.error == Errc{});  // It is the first that may object.
  vote.reason = fmt::format(
      "the history of the job's timelines cannot be read ({}): it says which steps were abandoned, "
      "and nothing replaces it: make it readable and restore again",
      view.history_lost);
  if (vote.chosen) return reject_chosen(vote, Errc::io, "rejected: the history could not be read");
  vote.error = Errc::io;
}

// Without the history an abandoned step looks like the newest. A caller that names a step has
// chosen it.
void refuse_without_history(Vote& vote, const ClusterView& view, const VoteRules& rules) {
  if (!vote.chosen || rules.wanted || view.history_lost.empty() || !rules.history.empty()) return;
  CKPT_ASSERT(!view.is_history_unreadable);  // That was refused before.
  vote.reason = fmt::format(
      "the history of the job's timelines is lost ({}), and step {} may be one that a restore "
      "to an older step abandoned: restore a step by its number",
      view.history_lost, number(vote.chosen->step));
  reject_chosen(vote, Errc::corruption, "rejected: nobody knows whether it was abandoned");
}

// The coverage without the node: its copies are gone, and stored steps stay. One of another number
// of ranks is voted for only while some memory has a part of it.
Coverage without(const Coverage& all, const std::string& node) {
  const auto alone = all.alone.find(node);
  Coverage rest;
  rest.saved_by = all.saved_by;
  rest.is_of_others = all.is_of_others;
  rest.missing = all.missing;
  rest.damage = all.damage;
  rest.is_unreadable = all.is_unreadable;
  rest.is_in_memory = all.is_in_memory && alone == all.alone.end();
  const bool is_of_none = all.is_of_others && !is_held_beside(all, node);
  if (is_of_none || (alone != all.alone.end() && alone->second)) rest.missing.push_back(0);
  return rest;
}

// A failed read says nothing about the bytes. Training from an older step would abandon one that is
// good, as that of another user's files. A caller that names a step, or memory, has chosen it.
void refuse_older_than_unreadable(Vote& vote, const ClusterView& view, const VoteRules& rules) {
  if (vote.chosen && (rules.wanted || rules.is_memory_only)) return;
  if (!vote.chosen && vote.error != Errc{}) return;  // Refused for another reason.
  const auto unreadable = newest_unreadable(vote, view, rules);
  if (!unreadable) return;
  vote.reason = fmt::format("step {} on storage could not be read, and may be good: {}; ",
                            number(unreadable->step), unreadable->why);
  if (vote.chosen) {
    vote.reason += fmt::format(
        "mend that and restore again, or restore step {} by its number, which abandons the newer "
        "one",
        number(vote.chosen->step));
    return reject_chosen(vote, Errc::io, "rejected: a newer step could not be read");
  }
  vote.reason += "mend that and restore again, or begin without it by start_fresh()";
  vote.error = Errc::io;
}

// A later repair does not bring a step back that was passed over for its damage: from the new
// timeline on it is abandoned, and the first to be deleted. Steps that are abandoned already are
// not named again; of one whose manifest is damaged only the number is known.
std::string describe_abandoned(const Vote& vote, const ClusterView& view, const History& history) {
  const auto is_passed_already = [&](Step step) {
    return std::ranges::any_of(history, [&](const format::TimelineStart& start) {
      return start.base && start.base->step < step;
    });
  };
  std::optional<std::pair<Step, std::uint64_t>> newest;  // With its timeline.
  if (view.newest_damaged && !is_passed_already(*view.newest_damaged))
    newest.emplace(*view.newest_damaged, vote.chosen->timeline);
  for (const Candidate& candidate : vote.candidates)
    if (candidate.is_damaged && !is_fenced(history, candidate.at))
      newest = std::max(newest, decltype(newest)({candidate.at.step, candidate.at.timeline}));
  if (!newest || newest->first <= vote.chosen->step) return {};
  const bool is_same = newest->second == vote.chosen->timeline;
  return fmt::format(
      "; going on from step {} abandons step {}{}, also if it is mended later: to take it, stop "
      "now, mend it and restore it by its path",
      number(vote.chosen->step), number(newest->first),
      is_same ? "" : fmt::format(" of timeline {}", newest->second));
}

void choose(Vote& result, const Coverages& steps, const VoteRules& rules) {
  // A second round admits suspects: a suspect step is better than none.
  for (const bool allow_suspect : {false, true}) {
    result.candidates.clear();
    for (const auto& [at, coverage] : steps) {
      Candidate candidate;
      candidate.at = at;
      candidate.is_in_memory = coverage.is_in_memory && coverage.missing.empty();
      candidate.is_damaged = !coverage.damage.empty() && !coverage.is_unreadable;
      candidate.is_unreadable = coverage.is_unreadable && !is_fenced(rules.history, at);
      candidate.verdict = objection(rules, at, coverage, allow_suspect);
      if (candidate.verdict.empty() && !result.chosen) {
        result.chosen = at;
        result.digests = coverage.digests;
        result.holders = coverage.holders;
        result.from_storage = !coverage.is_in_memory;
        candidate.is_chosen = true;
        candidate.verdict = coverage.is_in_memory ? "chosen: every shard is in memory"
                                                  : "chosen: some shards are read from storage";
        if (coverage.is_of_others) candidate.verdict += saved_by_text(coverage.saved_by);
      } else if (candidate.verdict.empty()) {
        candidate.verdict = "rejected: a newer step can be had";
      }
      result.candidates.push_back(std::move(candidate));
    }
    if (result.chosen) break;
  }
}

// Why the chosen step. A door looks at the newest and then names it, which is nobody's wish.
const char* choice(const Vote& vote, const Coverages& steps, const VoteRules& rules) {
  CKPT_ASSERT(vote.chosen.has_value());
  VoteRules unasked = rules;
  unasked.wanted.reset();
  Vote newest;
  choose(newest, steps, unasked);
  CKPT_ASSERT(newest.chosen.has_value());
  return newest.chosen == vote.chosen ? "the newest that all ranks can have"
                                      : "the step that was asked for";
}

Coverages cover_all(const ClusterView& view, const DamagedShards& damaged,
                    std::set<std::uint32_t>& other_worlds) {
  Coverages all;
  for (const format::StepId& at : all_steps(view, other_worlds))
    all.emplace_back(at, cover(view, damaged, at, view.shape.world_size));
  for (const ReportIndex::OfOthers& step : held_steps_of_others(view))
    all.emplace_back(step.at, cover(view, damaged, step.at, step.world_size));
  // A step by the job's own number of ranks comes before the same step by another number.
  std::ranges::sort(all, [](const auto& one, const auto& other) {
    if (one.first != other.first) return one.first > other.first;
    return std::pair(one.second.is_of_others, one.second.saved_by) <
           std::pair(other.second.is_of_others, other.second.saved_by);
  });
  return all;
}

}  // namespace

std::vector<Survival> votes_without_each(const ClusterView& view, const VoteRules& rules) {
  std::set<std::uint32_t> other_worlds;
  const Coverages all = cover_all(view, damaged_for_restore(view), other_worlds);
  std::vector<Survival> survivals;
  for (const Node& node : view.shape.nodes) {
    Coverages rest;
    for (const auto& [at, coverage] : all) rest.emplace_back(at, without(coverage, node.name));
    Vote result;
    choose(result, rest, rules);
    refuse_beside_unreadable_history(result, view, rules);
    prefer_newer_of_other_world(result, view, rules);
    refuse_without_history(result, view, rules);
    refuse_older_than_unreadable(result, view, rules);
    CKPT_ASSERT(!result.chosen || result.error == Errc{});
    survivals.push_back({node.name, result.chosen, result.from_storage});
  }
  return survivals;
}

Vote vote(const ClusterView& view, const VoteRules& rules) {
  Vote result;
  std::set<std::uint32_t> other_worlds;
  const DamagedShards damaged = damaged_for_restore(view);
  const std::size_t damaged_steps = damaged_count(view, damaged);
  const Coverages steps = cover_all(view, damaged, other_worlds);
  choose(result, steps, rules);
  refuse_beside_unreadable_history(result, view, rules);
  prefer_newer_of_other_world(result, view, rules);
  refuse_without_history(result, view, rules);
  refuse_older_than_unreadable(result, view, rules);
  check(result);
  if (result.error != Errc{}) return result;
  if (result.chosen) {
    result.reason = choice(result, steps, rules);
    if (result.digests.size() != view.shape.world_size)
      result.reason += saved_by_text(result.digests.size());
    if (rules.wanted) return result;
    // The trainer must learn that it does not go on from the newest.
    for (const Candidate& candidate : result.candidates) {
      if (*result.chosen < candidate.at &&
          (candidate.is_damaged || is_suspect(rules, candidate.at))) {
        result.reason += fmt::format("; step {} {}", number(candidate.at.step), candidate.verdict);
      }
    }
    if (damaged_steps > 0) {
      result.reason +=
          fmt::format("; {}, passed by{}; {}", describe_damage(view, damaged_steps),
                      describe_abandoned(result, view, rules.history), format::repair_advice);
    }
    if (!view.overtaken.empty()) result.reason += "; " + view.overtaken;
    for (const UnreadableStep& unreadable : view.unreadable_steps)
      result.reason +=
          fmt::format("; step {} could not be read: {}", number(unreadable.step), unreadable.why);
  } else {
    explain_failure(result, other_worlds, view, rules, damaged);
  }
  return result;
}

}  // namespace ckpt::agree
