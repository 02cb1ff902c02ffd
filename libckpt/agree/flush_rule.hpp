// FlushRule: which committed step goes to storage, and when.
#pragma once

#include <cstdint>
#include <optional>

#include "agree/cluster_view.hpp"
#include "base/clock.hpp"

namespace ckpt::agree {

struct FlushHistory {
  std::optional<format::StepId> newest;  // Newest step that was flushed, or found on storage.
  std::optional<Time> started_at;        // The newest flush; none: this coordinator began none.
};

// True when the policy asks for `committed` on storage now. `is_final`: the job closes.
bool is_flush_due(const JobShape& shape, format::StepId committed, const FlushHistory& history,
                  Time now, bool is_final);

}  // namespace ckpt::agree
