// StepVote: the newest step that all ranks can restore, and why not a newer one.
//
// It is neither the newest step of any rank, nor the oldest of the ranks' newest. A step counts
// when every rank's shard has a verified copy in memory or a published file. A step that another
// number of ranks saved counts so while some memory has a shard of it; without, the trainer reads
// it from its path.
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
  bool is_in_memory = false;   // Every shard has a copy in memory.
  bool is_damaged = false;     // A shard has no copy in memory, and storage's is damaged.
  bool is_unreadable = false;  // The same, but storage's could not be read, and may be good.
  std::string verdict;         // "chosen: ..." or why it was rejected; for people.
};

struct Vote {
  std::optional<format::StepId> chosen;
  std::vector<Digest> digests;                    // By rank that saved the chosen step.
  std::vector<std::vector<std::string>> holders;  // Likewise: nodes with such a copy in memory.
  bool from_storage = false;
  std::vector<Candidate> candidates;  // Newest first.
  Errc error{};                       // Why nothing was chosen, as a reaction.
  std::string reason;                 // One sentence for people.
};

struct VoteRules {
  std::optional<Step> wanted;  // Only this step number.
  History history;
  std::vector<format::RestoreCount> restore_counts;
  bool is_memory_only = false;  // A step of which storage has to give a shard does not count.
};

Vote vote(const ClusterView& view, const VoteRules& rules);

// Survival: the step that could be restored if one node were gone.
struct Survival {
  std::string node;
  std::optional<format::StepId> chosen;
  bool from_storage = false;
};
// For each node of the list, in one look at the view. Copies that differ from the believed digest
// never count, even if all believed copies are gone.
std::vector<Survival> votes_without_each(const ClusterView& view, const VoteRules& rules);

}  // namespace ckpt::agree
