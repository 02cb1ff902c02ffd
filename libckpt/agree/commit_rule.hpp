// CommitRule: when a step is COMMITTED, and when it is given up.
//
// Committed: every rank's shard lies verified in as many failure domains as asked for, or as are
// alive. Given up: a rank went past the step without capturing it, or closes without it, so the
// step can never be complete. Its Slots are free at once, on all nodes.
#pragma once

#include <optional>
#include <vector>

#include "agree/cluster_view.hpp"

namespace ckpt::agree {

// Copies of each shard that a step needs now: min(replicas, live failure domains).
// Nodes that may still come count as live, so that a job's first steps are not committed too early.
std::size_t required_copies(const ClusterView& view);

// The newest step of `timeline` that is safe now.
std::optional<format::StepId> newest_committable(const ClusterView& view, std::uint64_t timeline);

// Steps of `timeline` above `committed` that some rank holds or fills, and another one skipped.
std::vector<format::StepId> given_up(const ClusterView& view, std::uint64_t timeline,
                                     std::optional<format::StepId> committed);

}  // namespace ckpt::agree
