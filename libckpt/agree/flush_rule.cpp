#include "agree/flush_rule.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ckpt::agree {

bool is_flush_due(const JobShape& shape, format::StepId committed, const FlushHistory& history,
                  Time now, bool is_final) {
  if (history.newest && committed <= *history.newest) return false;
  if (is_final) return true;
  const Interval& interval = shape.save_storage_interval;
  if (interval.is_never()) return false;
  if (interval.steps > 0) {
    // A multiple of the interval lies in (newest, committed]: a step that was skipped in memory
    // is made up for by the next one that was not.
    const std::uint64_t before = history.newest ? number(history.newest->step) : 0;
    const std::uint64_t now_step = number(committed.step);
    if (before > now_step) return true;  // A new timeline from an older step.
    return now_step / interval.steps > before / interval.steps;
  }
  return !history.started_at || now - *history.started_at >= interval.time;
}

std::optional<std::vector<std::string>> assign_writers(const ClusterView& view, format::StepId at) {
  std::vector<std::string> writers;
  for (const std::optional<Copies>& shard : copies_of(view, at)) {
    if (!shard) return std::nullopt;
    writers.push_back(shard->nodes.front());  // Own copies come first.
  }
  return writers;
}

FlushState flush_state(const ClusterView& view, const format::FlushOrder& order) {
  FlushState state;
  state.digests.resize(order.writers.size());
  std::vector<bool> done(order.writers.size(), false);
  for (std::size_t rank = 0; rank < order.writers.size(); ++rank) {
    const auto writer = std::find_if(
        view.reports.begin(), view.reports.end(),
        [&](const format::NodeReport& node) { return node.node == order.writers[rank]; });
    if (writer == view.reports.end()) {
      state.progress = FlushProgress::failed;
      state.failure =
          fmt::format("node {} was lost while it wrote rank {}", order.writers[rank], rank);
      return state;
    }
    if (writer->flush.flush_id != order.flush_id) continue;
    if (!writer->flush.failure.empty()) {
      state.progress = FlushProgress::failed;
      state.failure = fmt::format("node {}: {}", writer->node, writer->flush.failure);
      return state;
    }
    for (const format::ShardFlushed& flushed : writer->flush.done) {
      if (flushed.rank != rank) continue;
      done[rank] = true;
      state.digests[rank] = flushed.digest;
    }
  }
  if (std::all_of(done.begin(), done.end(), [](bool is_done) { return is_done; })) {
    state.progress = FlushProgress::complete;
  }
  return state;
}

}  // namespace ckpt::agree
