#include "agree/flush_parts.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/log.hpp"

namespace ckpt::agree {

namespace {

const format::NodeReport* report_of(const ClusterView& view, const std::string& node) {
  const auto report =
      std::find_if(view.reports.begin(), view.reports.end(),
                   [&](const format::NodeReport& each) { return each.node == node; });
  return report == view.reports.end() ? nullptr : &*report;
}

bool holds(const format::NodeReport& node, const format::ShardId& id, const Digest& digest) {
  return std::any_of(node.holdings.begin(), node.holdings.end(), [&](const format::Holding& held) {
    return held.id == id && held.digest == digest;
  });
}

// The entry for the rank's part in this turn; null: none.
template <class Entry>
const Entry* find(const std::vector<Entry>& entries, std::size_t rank, std::uint32_t turn) {
  const auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& each) {
    return each.rank == rank && each.turn == turn;
  });
  return entry == entries.end() ? nullptr : &*entry;
}

// Own copies come first.
const std::string& first_writer(const Copies& copies, const std::set<std::string>& to_avoid) {
  const auto node = std::find_if(copies.nodes.begin(), copies.nodes.end(),
                                 [&](const std::string& each) { return !to_avoid.contains(each); });
  return node == copies.nodes.end() ? copies.nodes.front() : *node;
}

}  // namespace

std::optional<FlushParts> FlushParts::make(const ClusterView& view, format::FlushOrder unassigned,
                                           const std::set<std::string>& to_avoid, Time now) {
  FlushParts made;
  made.order_ = std::move(unassigned);
  CKPT_ASSERT(made.order_.writers.empty());
  for (const std::optional<Copies>& shard : copies_of_any(view, made.order_.at)) {
    if (!shard) return std::nullopt;
    const std::string& node = first_writer(*shard, to_avoid);
    made.order_.writers.push_back({node, 0});
    made.parts_.push_back({shard->digest, false, {node}});
    made.writers_[node] = {0, now};
  }
  CKPT_ASSERT(made.parts_.size() == made.order_.writers.size());
  return made;
}

bool FlushParts::can_avoid(const ClusterView& view, format::StepId at,
                           const std::set<std::string>& nodes) {
  const auto copies = copies_of_any(view, at);
  return std::all_of(copies.begin(), copies.end(), [&](const std::optional<Copies>& shard) {
    return shard && !nodes.contains(first_writer(*shard, nodes));
  });
}

std::vector<Digest> FlushParts::digests() const {
  std::vector<Digest> digests;
  for (const Part& part : parts_) digests.push_back(part.digest);
  return digests;
}

bool FlushParts::had_several_writers() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.writers.size() > 1; });
}

void FlushParts::note_progress(const ClusterView& view, Time now) {
  for (auto& [node, writer] : writers_) {
    const format::NodeReport* report = report_of(view, node);
    if (report == nullptr || report->flush.flush_id != order_.flush_id) continue;
    // A part that is done is progress, too.
    const std::uint64_t progress = report->flush.progress + report->flush.done.size();
    if (progress != writer.progress) writer = {progress, now};
  }
}

bool FlushParts::has_stalled(const std::string& node, Time now, Duration stalled_after) const {
  const auto writer = writers_.find(node);
  if (writer == writers_.end() || now - writer->second.moved_at < stalled_after) return false;
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    if (!parts_[rank].is_done && order_.writers[rank].node == node) return true;
  }
  return false;
}

// The files of each turn have names of their own, so that the first finished turn may count.
void FlushParts::find_done(const ClusterView& view, std::size_t rank) {
  Part& part = parts_[rank];
  for (std::uint32_t turn = 0; turn < part.writers.size(); ++turn) {
    const format::NodeReport* report = report_of(view, part.writers[turn]);
    if (report == nullptr || report->flush.flush_id != order_.flush_id) continue;
    const format::ShardFlushed* done = find(report->flush.done, rank, turn);
    if (done == nullptr || done->digest != part.digest) continue;
    CKPT_ASSERT(!part.is_done);
    part.is_done = true;
    order_.writers[rank] = {part.writers[turn], turn};
    return;
  }
}

// Why the rank's present writer will not finish its part; empty: it may.
std::string FlushParts::trouble_of(const ClusterView& view, std::size_t rank) const {
  const format::FlushWriter& writer = order_.writers[rank];
  const format::NodeReport* report = report_of(view, writer.node);
  if (report == nullptr || report->flush.flush_id != order_.flush_id) return {};
  if (find(report->flush.done, rank, writer.turn) != nullptr)
    return fmt::format("node {} wrote another save of rank {}", writer.node, rank);
  const format::ShardNotFlushed* failed = find(report->flush.failed, rank, writer.turn);
  return failed == nullptr ? "" : fmt::format("node {}: {}", writer.node, failed->failure);
}

// False: no other node can write it.
bool FlushParts::give_to_another(const ClusterView& view, std::size_t rank, Time now,
                                 Duration stalled_after) {
  Part& part = parts_[rank];
  const format::ShardId id{order_.at, static_cast<std::uint32_t>(rank)};
  for (const format::NodeReport& node : view.reports) {
    const bool was_tried =
        std::find(part.writers.begin(), part.writers.end(), node.node) != part.writers.end();
    if (was_tried || !holds(node, id, part.digest)) continue;
    if (has_stalled(node.node, now, stalled_after)) continue;
    format::FlushWriter& writer = order_.writers[rank];
    log_warning("job={} step={} rank={} is written by node {} now, instead of node {}",
                view.shape.job, number(order_.at.step), rank, node.node, writer.node);
    part.writers.push_back(node.node);
    writer = {node.node, static_cast<std::uint32_t>(part.writers.size() - 1)};
    writers_[node.node].moved_at = now;
    CKPT_ASSERT(!part.is_done);
    CKPT_ASSERT(writer.turn > 0);
    return true;
  }
  return false;
}

FlushProgress FlushParts::look(const ClusterView& view, Time now, Duration stalled_after) {
  note_progress(view, now);
  stuck_.clear();
  bool is_complete = true;
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    Part& part = parts_[rank];
    if (!part.is_done) find_done(view, rank);
    if (part.is_done) continue;
    is_complete = false;
    const std::string node = order_.writers[rank].node;
    const bool is_lost = report_of(view, node) == nullptr;
    const bool hangs = has_stalled(node, now, stalled_after);
    std::string trouble = trouble_of(view, rank);
    if (hangs && !is_lost) hung_.insert(node);
    if (!is_lost && !hangs && trouble.empty()) continue;
    if (give_to_another(view, rank, now, stalled_after)) continue;
    CKPT_ASSERT(is_lost || hangs || !trouble.empty());
    if (!trouble.empty()) {
      failure_ = std::move(trouble);
      return FlushProgress::failed;
    }
    stuck_ = is_lost ? fmt::format("node {} was lost while it wrote rank {} of step {}", node, rank,
                                   number(order_.at.step))
                     : fmt::format("node {} writes rank {} of step {} and makes no progress", node,
                                   rank, number(order_.at.step));
  }
  return is_complete ? FlushProgress::complete : FlushProgress::running;
}

}  // namespace ckpt::agree
