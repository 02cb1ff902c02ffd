#include "agree/source_vote.hpp"

#include <fmt/format.h>

#include "base/assert.hpp"

namespace ckpt::agree {

namespace {

ClusterView without_memory(ClusterView view) {
  for (format::NodeReport& report : view.reports) report.holdings.clear();
  view.index.reset();  // It is one of the reports with them.
  return view;
}

// Why there is nothing: what the vote said of the step that was asked for, or of the newest.
std::string objection_of(const Vote& vote, const VoteRules& rules) {
  for (const Candidate& candidate : vote.candidates)
    if (!rules.wanted || candidate.at.step == *rules.wanted)
      return fmt::format("step {}: {}", number(candidate.at.step), candidate.verdict);
  return rules.wanted ? "it is not there" : "there is none";
}

}  // namespace

const char* name_of(SourceChoice source) {
  switch (source) {
    case SourceChoice::any:
      return "any source";
    case SourceChoice::memory:
      return "memory";
    case SourceChoice::storage:
      return "storage";
  }
  return "unknown";
}

Vote vote_from(SourceChoice source, const ClusterView& view, VoteRules rules) {
  Vote all = vote(view, rules);
  if (source == SourceChoice::any) return all;
  const bool is_memory = source == SourceChoice::memory;
  rules.is_memory_only = is_memory;
  Vote alone = is_memory ? vote(view, rules) : vote(without_memory(view), rules);
  if (!alone.chosen && !all.chosen) return all;
  const char* const other = is_memory ? "storage" : "memory";
  if (alone.chosen) {
    alone.reason += fmt::format("; {} alone was asked for", name_of(source));
    if (all.chosen && *all.chosen > *alone.chosen)
      alone.reason += fmt::format(": with {} it would be step {}", other, number(all.chosen->step));
    return alone;
  }
  // Not "not found": a trainer would begin from the first step and replace the others. The damage
  // of what is on storage is a reason of its own.
  if (is_memory || alone.error == Errc::not_found) {
    alone.error = Errc::unavailable;
    alone.reason = fmt::format(
        "{} be restored from {} alone, as was asked ({})",
        rules.wanted ? fmt::format("step {} cannot", number(*rules.wanted)) : "no step can",
        name_of(source), objection_of(alone, rules));
  }
  alone.reason +=
      fmt::format("; with {}, step {} can be restored", other, number(all.chosen->step));
  CKPT_ASSERT(alone.error != Errc{});
  return alone;
}

}  // namespace ckpt::agree
