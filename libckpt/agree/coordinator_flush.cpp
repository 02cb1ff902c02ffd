// Flushes, as the coordinator of a job orders, follows and ends them.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "agree/coordinator.hpp"
#include "agree/successor.hpp"
#include "base/assert.hpp"
#include "base/change_checked.hpp"
#include "base/log.hpp"

namespace ckpt::agree {

bool Coordinator::is_flush_wanted(const ClusterView& view) {
  std::size_t attached = 0;
  std::size_t closing = 0;
  for (const RankView& rank : ranks_of(view)) {
    attached += rank.report != nullptr;
    closing += rank.report != nullptr && rank.report->is_closing;
  }
  const bool is_asked =
      std::any_of(view.reports.begin(), view.reports.end(),
                  [](const format::NodeReport& node) { return node.flush.is_wanted; });
  return is_asked || (attached > 0 && closing == attached);
}

// Removed by hand since it was stored, and still in memory as a whole.
bool Coordinator::must_store_again(const ClusterView& view) const {
  const bool is_gone = view.last_look == LastLookState::gone && decree_.committed &&
                       decree_.durable >= decree_.committed;
  if (!is_gone) return false;
  const StepCopies copies = copies_of_any(view, *decree_.committed);
  return std::all_of(copies.begin(), copies.end(),
                     [](const auto& shard) { return shard.has_value(); });
}

void Coordinator::decide_flush(const ClusterView& view, Time now) {
  if (decree_.flush) {
    follow_flush(view, now);
    return;
  }
  if (!view.shape.has_storage || !view.published || !decree_.committed) return;
  if (flush_not_before_ && now < *flush_not_before_) return;
  const bool is_due =
      is_flush_due(view.shape, *decree_.committed, flush_history_, now, is_final_) ||
      (is_final_ && must_store_again(view));
  if (!is_due) return;
  format::FlushOrder order;
  order.flush_id = random_.next() | 1;
  order.at = *decree_.committed;
  order.work_directory = fmt::format(".step-{:09}.t{}.{:016x}", number(order.at.step),
                                     order.at.timeline, order.flush_id);
  flush_parts_ = FlushParts::make(view, std::move(order), writers_to_avoid(now), now);
  if (!flush_parts_) return;
  CKPT_ASSERT(!publishing_.has_value());
  decree_.flush = flush_parts_->order();
  flush_history_.started_at = now;
}

void Coordinator::follow_flush(const ClusterView& view, Time now) {
  CKPT_ASSERT(flush_parts_.has_value());
  if (publishing_) return;  // All parts are there.
  switch (flush_parts_->look(view, now, options_.flush_stalled_after)) {
    case FlushProgress::failed:
      give_up_flush(std::string(flush_parts_->failure()), now);
      return;
    case FlushProgress::complete:
      publishing_ = Publishing{
          flush_parts_->order(), flush_parts_->digests(), flush_parts_->had_several_writers(), {}};
      for (const auto& [at, shards] : damaged_shards(view)) publishing_->damaged.push_back(at);
      break;
    case FlushProgress::running:
      break;
  }
  decree_.flush = flush_parts_->order();  // A part may have been given to another node.
  if (flush_parts_->stuck().empty()) return;
  // The copies of the older step are freed meanwhile, and those of the newer one are there. If
  // storage hangs for all nodes, another flush would only hold more memory.
  const bool has_newer = decree_.committed && *decree_.committed > decree_.flush->at;
  if (!has_newer) return;
  const std::set<std::string>& hung = flush_parts_->hung();
  std::set<std::string> to_avoid = writers_to_avoid(now);
  to_avoid.insert(hung.begin(), hung.end());
  if (!FlushParts::can_avoid(view, *decree_.committed, to_avoid)) {
    if (hung.empty() || !FlushParts::can_avoid(view, *decree_.committed, hung)) return;
    // A node that hung in an earlier flush may be well by now. Those of this one are not.
    std::erase_if(hung_writers_, [&](const auto& each) { return !hung.contains(each.first); });
  }
  give_up_flush(std::string(flush_parts_->stuck()), now);
}

void Coordinator::remember_hung_writers(Time now) {
  for (const std::string& node : flush_parts_->hung())
    hung_writers_[node] = now + options_.hung_writer_avoided_for;
}

std::set<std::string> Coordinator::writers_to_avoid(Time now) const {
  std::set<std::string> nodes;
  for (const auto& [node, until] : hung_writers_) {
    if (now < until) nodes.insert(node);
  }
  return nodes;
}

void Coordinator::forget_flush() {
  decree_.flush.reset();
  flush_parts_.reset();
  publishing_.reset();
}

void Coordinator::give_up_flush(const std::string& why, Time now) {
  CKPT_ASSERT(decree_.flush.has_value());
  log_warning("job={} step={} flush given up, tried again in {} ms: {}", decree_.job,
              number(decree_.flush->at.step), flush_backoff_ / std::chrono::milliseconds(1), why);
  flush_trouble_ = fmt::format("step {} is not stored: {}", number(decree_.flush->at.step), why);
  not_stored_ = decree_.flush->at;
  remember_hung_writers(now);
  forget_flush();
  flush_not_before_ = now + flush_backoff_;
  flush_backoff_ = std::min(flush_backoff_ * 2, options_.flush_retry_after_max);
}

void Coordinator::forget_flush_pause() {
  flush_not_before_.reset();
  flush_backoff_ = options_.flush_retry_after;
}

// The job may have been started again because its storage was repaired.
void Coordinator::notice_new_trainers(const ClusterView& view) {
  std::set<std::uint64_t> present;
  for (const format::NodeReport& node : view.reports) {
    for (const format::RankReport& rank : node.ranks) present.insert(rank.session);
  }
  if (!std::ranges::includes(sessions_, present)) forget_flush_pause();
  sessions_ = std::move(present);
}

void Coordinator::published(std::uint64_t flush_id, const Status& status, Time now) {
  change_checked(*this, [&] { end_flush(flush_id, status, now); });
}

void Coordinator::end_flush(std::uint64_t flush_id, const Status& status, Time now) {
  if (unrecorded_ && unrecorded_->before.flush && unrecorded_->before.flush->flush_id == flush_id)
    end_set_aside_flush(status);
  if (!decree_.flush || decree_.flush->flush_id != flush_id) return;  // Given up meanwhile.
  if (!status) {
    give_up_flush(status.error().message(), now);
    return;
  }
  const format::Decree before = decree_;
  const format::StepId at = decree_.flush->at;
  decree_.durable = std::max(decree_.durable, std::optional(at));
  flush_history_.newest = std::max(flush_history_.newest, std::optional(at));
  forget_flush_pause();
  flush_trouble_.clear();
  remember_hung_writers(now);
  forget_flush();
  ++decree_.sequence;
  CKPT_ASSERT(is_successor(before, decree_));
}

// A Start set the flush aside before it ended. If the Start is refused, the flush must not come
// back: its end is reported once.
void Coordinator::end_set_aside_flush(const Status& status) {
  CKPT_ASSERT(unrecorded_->flush_parts.has_value());
  const std::optional<format::StepId> at = unrecorded_->before.flush->at;
  if (status) {
    unrecorded_->before.durable = std::max(unrecorded_->before.durable, at);
    unrecorded_->flush_history.newest = std::max(unrecorded_->flush_history.newest, at);
  }
  unrecorded_->before.flush.reset();
  unrecorded_->flush_parts.reset();
  unrecorded_->publishing.reset();
}

// Storage that hangs causes no error: without this text nobody would know.
std::string Coordinator::slow_flush(const ClusterView& view, Time now) const {
  if (!decree_.flush || !decree_.committed || !flush_history_.started_at) return {};
  const Duration taken = now - *flush_history_.started_at;
  if (taken < options_.flush_slow_after) return {};
  FlushHistory with_this = flush_history_;
  with_this.newest = decree_.flush->at;
  const bool is_more_due = is_flush_due(view.shape, *decree_.committed, with_this, now, false);
  if (!is_more_due && !is_final_) return {};
  const auto times = taken / options_.flush_slow_after;  // The text changes now and then.
  return fmt::format("step {} has been on its way to storage for {} s, and more is due",
                     number(decree_.flush->at.step),
                     times * (options_.flush_slow_after / std::chrono::seconds(1)));
}

// More nodes died than there were copies. A close that waits for the step must not blame storage,
// and no node without trainers waits for it before its end.
std::string Coordinator::lost_part(const ClusterView& view) const {
  const bool is_awaited = is_final_ && view.shape.has_storage && !decree_.flush;
  if (!is_awaited || !view.all_live || decree_.durable >= decree_.committed) return {};
  const StepCopies copies = copies_of_any(view, *decree_.committed);
  const auto lost = std::find(copies.begin(), copies.end(), std::nullopt);
  if (lost == copies.end()) return {};
  return fmt::format("step {} cannot be stored: rank {}'s part of it died with its nodes",
                     number(decree_.committed->step), lost - copies.begin());
}

}  // namespace ckpt::agree
