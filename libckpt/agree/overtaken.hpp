// Overtaken: steps that nodes hold in memory, and that a daemon which knows nothing of this job's
// nodes has abandoned: it began a timeline from an older step, in the same directory.
#pragma once

#include <string>

#include "agree/cluster_view.hpp"
#include "agree/timelines.hpp"

namespace ckpt::agree {

// Names the newest step in memory that `now` abandons and `before` did not, and what abandoned it;
// empty: there is none. For people.
std::string describe_overtaken(const ClusterView& view, const History& before, const History& now);

}  // namespace ckpt::agree
