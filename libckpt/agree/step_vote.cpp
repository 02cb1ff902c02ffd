#include "agree/step_vote.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/assert.hpp"

namespace ckpt::agree {

namespace {

std::string saved_by_text(std::size_t ranks) {
  return ranks == 1 ? "; 1 rank saved it" : fmt::format("; {} ranks saved it", ranks);
}

struct Coverage {
  std::uint32_t saved_by = 0;  // The number of ranks that made it.
  bool is_of_others = false;   // Another one than the job's.
  std::vector<Digest> digests;
  std::vector<std::vector<std::string>> holders;
  std::vector<std::uint32_t> missing;  // Ranks.
  std::string damage;                  // The first damage of their files; empty: none.
  bool is_in_memory = true;
  // Nodes that alone hold some rank's shard in memory; true: storage does not have it either.
  std::map<std::string, bool> alone;
};
using Coverages = std::vector<std::pair<format::StepId, Coverage>>;  // Newest first.

const PublishedStep* find_published(const ClusterView& view, format::StepId at,
                                    std::uint32_t world_size) {
  if (!view.published) return nullptr;
  for (const PublishedStep& step : *view.published) {
    if (step.at == at && step.world_size == world_size) return &step;
  }
  return nullptr;
}

const char* describe(Errc code) {
  return code == Errc::corruption ? "is damaged" : "could not be read";
}

bool agrees(const PublishedStep* published, std::uint32_t rank, const Digest& digest) {
  return published == nullptr || published->digests[rank] == digest;
}

// All ranks agreed on published steps: a copy in memory that differs is not used.
Coverage cover(const ClusterView& view, const DamagedShards& damaged, format::StepId at) {
  Coverage coverage;
  coverage.saved_by = view.shape.world_size;
  const auto copies = copies_of(view, at);
  const PublishedStep* published = find_published(view, at, view.shape.world_size);
  const auto damage = damaged.find(at);
  const auto is_damaged = [&](std::uint32_t rank) {
    return damage != damaged.end() && damage->second.contains(rank);
  };
  coverage.holders.resize(view.shape.world_size);
  for (std::uint32_t rank = 0; rank < view.shape.world_size; ++rank) {
    if (copies[rank] && agrees(published, rank, copies[rank]->digest)) {
      coverage.digests.push_back(copies[rank]->digest);
      coverage.holders[rank] = copies[rank]->nodes;
      if (copies[rank]->nodes.size() == 1) {
        const bool is_stored = published != nullptr && !is_damaged(rank);
        bool& is_only_copy = coverage.alone[copies[rank]->nodes.front()];
        is_only_copy = is_only_copy || !is_stored;
      }
    } else if (published != nullptr && is_damaged(rank)) {
      coverage.digests.emplace_back();
      coverage.missing.push_back(rank);
      if (coverage.damage.empty())
        coverage.damage =
            fmt::format("the stored shard of rank {} {}", rank, describe(damage->second.at(rank)));
    } else if (published != nullptr) {
      coverage.digests.push_back(published->digests[rank]);
      coverage.is_in_memory = false;
    } else {
      coverage.digests.emplace_back();
      coverage.missing.push_back(rank);
    }
  }
  return coverage;
}

// A step that another number of ranks made counts while memory has all of it: its pieces are put
// together anew. Without, there is what storage has of it, which the trainer reads.
Coverage cover_of_others(const ClusterView& view, const ReportIndex::OfOthers& step) {
  Coverage coverage;
  coverage.saved_by = step.world_size;
  coverage.is_of_others = true;
  const auto copies = copies_of_others(view, step);
  const PublishedStep* published = find_published(view, step.at, step.world_size);
  coverage.holders.resize(step.world_size);
  coverage.digests.resize(step.world_size);
  for (std::uint32_t rank = 0; rank < step.world_size; ++rank) {
    if (!copies[rank] || !agrees(published, rank, copies[rank]->digest)) {
      coverage.missing.push_back(rank);
      continue;
    }
    coverage.digests[rank] = copies[rank]->digest;
    coverage.holders[rank] = copies[rank]->nodes;
    if (copies[rank]->nodes.size() == 1) coverage.alone[copies[rank]->nodes.front()] = true;
  }
  return coverage;
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

// The newest published step that another number of ranks saved and that was not abandoned.
const PublishedStep* newest_of_other_world(const ClusterView& view, const VoteRules& rules) {
  const PublishedStep* newest = nullptr;
  if (!view.published) return newest;
  for (const PublishedStep& step : *view.published) {
    if (step.world_size == view.shape.world_size || is_fenced(rules.history, step.at)) continue;
    if (rules.wanted && step.at.step != *rules.wanted) continue;
    if (newest == nullptr || step.at > newest->at) newest = &step;
  }
  return newest;
}

bool is_suspect(const VoteRules& rules, format::StepId at) {
  return agree::is_suspect(rules.restore_counts, rules.restores_without_progress_max, at);
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
    return fmt::format("rejected: no copy of rank {} ({} of {} ranks missing)",
                       coverage.missing.front(), coverage.missing.size(), coverage.saved_by);
  }
  if (!allow_suspect && is_suspect(rules, at)) {
    return fmt::format(
        "rejected: restored {} times, and training never got on (no step committed, no "
        "restored_ok, no close)",
        rules.restores_without_progress_max);
  }
  return {};
}

// The number of checkpoints on storage that cannot be trusted.
std::size_t damaged_count(const ClusterView& view, const DamagedShards& damaged) {
  std::size_t count = view.damaged_published;
  for (const PublishedStep& step : view.published.value_or(std::vector<PublishedStep>{}))
    count += damaged.contains(step.at);
  return count;
}

std::string describe_damage(std::size_t count) {
  return fmt::format("{} checkpoint{} on storage {} damaged (see ckpt verify)", count,
                     count == 1 ? "" : "s", count == 1 ? "is" : "are");
}

std::string why_not(const Vote& vote, Step wanted) {
  for (const Candidate& candidate : vote.candidates) {
    if (candidate.at.step == wanted)
      return fmt::format("step {} cannot be restored: {}", number(wanted), candidate.verdict);
  }
  return fmt::format("step {} is not there; the newest seen is step {}", number(wanted),
                     number(vote.candidates.front().at.step));
}

void explain_failure(Vote& vote, const std::set<std::uint32_t>& other_worlds,
                     const ClusterView& view, const VoteRules& rules, std::size_t damaged) {
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
    vote.reason = describe_damage(damaged) + ", and ";
    if (const PublishedStep* other = newest_of_other_world(view, rules)) {
      vote.reason += fmt::format(
          "the newest of the others, step {}, was taken by {} ranks, "
          "this job has {}",
          number(other->at.step), other->world_size, view.shape.world_size);
    } else {
      vote.reason += has_others ? "none of the others can be restored" : "no other can be restored";
    }
  } else if (const PublishedStep* other = newest_of_other_world(view, rules)) {
    // Not here either: no step of this number of ranks is left.
    vote.error = Errc::unsupported;
    vote.reason = fmt::format(
        "the newest checkpoint that is left, step {}, was taken by {} ranks, "
        "this job has {}: a restore from its path takes it",
        number(other->at.step), other->world_size, view.shape.world_size);
  } else if (!vote.candidates.empty() && rules.wanted) {
    if (!other_worlds.empty()) vote.error = Errc::unsupported;
    vote.reason = why_not(vote, *rules.wanted);
  } else if (!other_worlds.empty()) {
    // Not "not found": some of it may come back with a node.
    vote.error = Errc::unsupported;
    vote.reason = fmt::format("the steps in memory were saved by {} ranks, this job has {}",
                              *other_worlds.begin(), view.shape.world_size);
    if (!vote.candidates.empty())
      vote.reason +=
          fmt::format("; the newest seen is step {}, {}", number(vote.candidates.front().at.step),
                      vote.candidates.front().verdict);
  } else if (!vote.candidates.empty()) {
    vote.reason =
        fmt::format("no step can be restored; newest seen: timeline {} step {}, {}",
                    vote.candidates.front().at.timeline, number(vote.candidates.front().at.step),
                    vote.candidates.front().verdict);
  } else {
    vote.reason = "there is no checkpoint yet";
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
  const PublishedStep* other = newest_of_other_world(view, rules);
  if (other == nullptr || !vote.chosen || !(other->at > *vote.chosen)) return;
  reject_chosen(vote, Errc::unsupported, "rejected: another number of ranks published a newer one");
  vote.reason =
      fmt::format("the newest checkpoint, step {}, was taken by {} ranks, this job has {}",
                  number(other->at.step), other->world_size, view.shape.world_size);
}

// Without the history an abandoned step looks like the newest. A caller that names a step has
// chosen it.
void refuse_without_history(Vote& vote, const ClusterView& view, const VoteRules& rules) {
  if (!vote.chosen || rules.wanted || view.history_lost.empty() || !rules.history.empty()) return;
  vote.reason = fmt::format(
      "the history of the job's timelines is lost ({}), and step {} may be one that a restore "
      "to an older step abandoned: restore a step by its number",
      view.history_lost, number(vote.chosen->step));
  reject_chosen(vote, Errc::corruption, "rejected: nobody knows whether it was abandoned");
}

// The coverage without the node: its copies are gone, and stored steps stay.
Coverage without(const Coverage& all, const std::string& node) {
  const auto alone = all.alone.find(node);
  Coverage rest;
  rest.saved_by = all.saved_by;
  rest.is_of_others = all.is_of_others;
  rest.missing = all.missing;
  rest.damage = all.damage;
  rest.is_in_memory = all.is_in_memory && alone == all.alone.end();
  if (alone != all.alone.end() && alone->second) rest.missing.push_back(0);
  return rest;
}

void choose(Vote& result, const Coverages& steps, const VoteRules& rules) {
  // A second round admits suspects: a suspect step is better than none.
  for (const bool allow_suspect : {false, true}) {
    result.candidates.clear();
    for (const auto& [at, coverage] : steps) {
      Candidate candidate{at, false, coverage.is_in_memory && coverage.missing.empty(),
                          !coverage.damage.empty(), objection(rules, at, coverage, allow_suspect)};
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

Coverages cover_all(const ClusterView& view, const DamagedShards& damaged,
                    std::set<std::uint32_t>& other_worlds) {
  Coverages all;
  for (const format::StepId& at : all_steps(view, other_worlds))
    all.emplace_back(at, cover(view, damaged, at));
  for (const ReportIndex::OfOthers& step : held_steps_of_others(view))
    all.emplace_back(step.at, cover_of_others(view, step));
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
  const Coverages all = cover_all(view, damaged_shards(view), other_worlds);
  std::vector<Survival> survivals;
  for (const Node& node : view.shape.nodes) {
    Coverages rest;
    for (const auto& [at, coverage] : all) rest.emplace_back(at, without(coverage, node.name));
    Vote result;
    choose(result, rest, rules);
    prefer_newer_of_other_world(result, view, rules);
    refuse_without_history(result, view, rules);
    CKPT_ASSERT(!result.chosen || result.error == Errc{});
    survivals.push_back({node.name, result.chosen, result.from_storage});
  }
  return survivals;
}

Vote vote(const ClusterView& view, const VoteRules& rules) {
  Vote result;
  std::set<std::uint32_t> other_worlds;
  const DamagedShards damaged = damaged_shards(view);
  const std::size_t damaged_steps = damaged_count(view, damaged);
  choose(result, cover_all(view, damaged, other_worlds), rules);
  prefer_newer_of_other_world(result, view, rules);
  refuse_without_history(result, view, rules);
  check(result);
  if (result.error != Errc{}) return result;
  if (result.chosen) {
    result.reason =
        rules.wanted ? "the step that was asked for" : "the newest that all ranks can have";
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
      result.reason += fmt::format("; {}, passed by", describe_damage(damaged_steps));
    }
    if (!view.overtaken.empty()) result.reason += "; " + view.overtaken;
  } else {
    explain_failure(result, other_worlds, view, rules, damaged_steps);
  }
  return result;
}

}  // namespace ckpt::agree
