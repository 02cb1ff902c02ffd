// StartRule: how a group of trainers begins together: all restore one step, or all start fresh.
//
//   every rank asks --vote--> Start(attempt 1) --every rank ready--> Start(go)
//                                 |  ^
//                       a rank failed, or came anew: the vote is repeated without the bad copy,
//                       at most start_attempts_max times
//
// No rank begins before all ranks are ready, so that no two ever train from different steps.
#pragma once

#include <optional>
#include <string>

#include "agree/cluster_view.hpp"
#include "agree/step_vote.hpp"
#include "base/random.hpp"

namespace ckpt::agree {

inline constexpr std::uint32_t start_attempts_max = 32;

// A random distance from the next number, for a timeline that cannot be claimed on storage. Nodes
// that do not hear one another may each begin a timeline at the same time. With the same number,
// the shards of both would pass for one step.
std::uint64_t unclaimed_distance(Random& random);

struct StartState {
  format::SharedStart current;  // Newest known; from our own decrees or from reports.
  History history;
  std::vector<format::RestoreCount> restore_counts;
  bool is_storage_late = false;  // It did not answer within the patience for it.
};

struct StartDecision {
  std::optional<format::Start> next;  // Replaces current; none: nothing to change.
  bool needs_published = false;       // Read the catalog of storage, then decide again.
  std::string waiting;                // The cause of a wait; for people. Empty: no wait.
  std::vector<Candidate> candidates;  // From the vote, for `recover --dry-run`.
};

// `may_wait`: a node of the list was not heard yet and may still come.
StartDecision decide_start(const ClusterView& view, const StartState& state, bool may_wait,
                           Random& random);

// Returns the timeline of a rank that trains after `start`, which proves that all ranks began.
// None: no rank trains after it.
std::optional<std::uint64_t> gone_in_timeline(const ClusterView& view, const format::Start& start);

// Whether every rank still takes part in `start`; a trainer that died, or asked anew, does not.
bool are_all_in(const ClusterView& view, const format::Start& start);

// Returns the one that was decided later.
format::SharedStart newer(format::SharedStart first, const format::SharedStart& second);
// The newest Start of `own` and all reports.
format::SharedStart newest_start(const ClusterView& view, format::SharedStart own);

}  // namespace ckpt::agree
