// SourceVote: the vote of ranks that chose where the step may come from: memory alone, or storage
// alone.
//
// Nothing begins anew because the place that was chosen lacks what the other one has. Where neither
// has anything, the answer is that of the vote without a choice.
#pragma once

#include <ckpt/outcome.hpp>

#include "agree/step_vote.hpp"

namespace ckpt::agree {

// "memory", "storage", "any source".
const char* name_of(SourceChoice source);

Vote vote_from(SourceChoice source, const ClusterView& view, VoteRules rules);

}  // namespace ckpt::agree
