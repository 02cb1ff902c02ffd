// NewestSeen: how far training is known to have come beyond a step that is about to be restored.
//
//   timeline 1   1 .. 90 .. 100
//   timeline 2        \ 91 .. 93       of a restore of (1, 90), 93 is the newest: timeline 1 above
//                                      its step 90 was lost before, and nobody counts it again
//
// It is never too high: a step of a timeline that does not lead on from the restored one says
// nothing. A step on storage whose manifest is damaged, or cannot be read, has a number and no
// timeline: it counts only if it would be lost in every timeline that it may be of. The answer may
// be too low, as daemons that saw more may be gone.
#pragma once

#include <ckpt/tensor.hpp>
#include <optional>

#include "agree/cluster_view.hpp"
#include "agree/timelines.hpp"

namespace ckpt::agree {

// None: no daemon that saw the job train is left, and no trace of a step after `restored`.
std::optional<Step> newest_seen(const ClusterView& view, const History& history,
                                format::StepId restored);

}  // namespace ckpt::agree
