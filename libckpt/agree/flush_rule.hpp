// FlushRule: which committed step goes to storage, who writes which rank, and when it is complete.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agree/cluster_view.hpp"
#include "base/clock.hpp"

namespace ckpt::agree {

struct FlushHistory {
  std::optional<format::StepId> newest;  // Newest step that was flushed, or found on storage.
  std::optional<Time> started_at;        // Of the newest flush; none since this coordinator began.
};

// True when the policy asks for `committed` on storage now. `is_final`: the job closes.
bool is_flush_due(const JobShape& shape, format::StepId committed, const FlushHistory& history,
                  Time now, bool is_final);

// By rank the node that writes it: its own node where that lives, else any holder.
// None: some shard has no live copy.
std::optional<std::vector<std::string>> assign_writers(const ClusterView& view, format::StepId at);

enum class FlushProgress : std::uint8_t { running, complete, failed };
struct FlushState {
  FlushProgress progress = FlushProgress::running;
  std::vector<Digest> digests;  // By rank, when complete.
  std::string failure;
};
FlushState flush_state(const ClusterView& view, const format::FlushOrder& order);

}  // namespace ckpt::agree
