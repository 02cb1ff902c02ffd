// StepVote: which step can all ranks restore? The newest exact common one, and why not a newer one.
//
// Not the maximum of what anybody has, not the minimum of everyone's newest: a step counts when the
// shard of every rank is covered by a verified copy in memory or by a published file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agree/cluster_view.hpp"
#include "agree/timelines.hpp"

namespace ckpt::agree {

struct Candidate {
  format::StepId at;
  bool is_chosen = false;
  bool is_in_memory = false;  // Every shard has a copy in memory.
  bool is_damaged = false;    // A shard has no copy in memory, and storage's is damaged.
  std::string verdict;        // "chosen: ..." or why it was rejected; for people.
};

struct Vote {
  std::optional<format::StepId> chosen;
  std::vector<Digest> digests;                    // By rank, of the chosen step.
  std::vector<std::vector<std::string>> holders;  // By rank: nodes with such a copy in memory.
  bool from_storage = false;
  std::vector<Candidate> candidates;  // Newest first.
  Errc error{};                       // When nothing was chosen: why, as a reaction.
  std::string reason;                 // One sentence for people.
};

struct VoteRules {
  std::optional<Step> wanted;  // Only this step number.
  History history;
  std::vector<format::RestoreCount> restore_counts;
  std::uint32_t restores_without_progress_max = 3;
};

Vote vote(const ClusterView& view, const VoteRules& rules);

// Survival: what could be restored if one node were gone.
struct Survival {
  std::string node;
  std::optional<format::StepId> chosen;
  bool from_storage = false;
};
// For each node of the list, in one look at the view. Copies of another digest than the one that is
// believed stand in for nothing, also where those that are believed are gone.
std::vector<Survival> votes_without_each(const ClusterView& view, const VoteRules& rules);

}  // namespace ckpt::agree
