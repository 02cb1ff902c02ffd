#include "agree/successor.hpp"

#include <algorithm>

#include "agree/start_rule.hpp"

namespace ckpt::agree {

namespace {

bool is_history_kept(const format::Decree& before, const format::Decree& after) {
  return std::all_of(before.history.begin(), before.history.end(), [&](const auto& timeline) {
    return std::find(after.history.begin(), after.history.end(), timeline) != after.history.end();
  });
}

// Another flush, or none, may replace it.
bool is_flush_kept(const std::optional<format::FlushOrder>& before,
                   const std::optional<format::FlushOrder>& after) {
  if (!before || !after || before->flush_id != after->flush_id) return true;
  const bool is_same = before->at == after->at && before->work_directory == after->work_directory &&
                       before->writers.size() == after->writers.size();
  if (!is_same) return false;
  for (std::size_t rank = 0; rank < before->writers.size(); ++rank) {
    const format::FlushWriter& writer = before->writers[rank];
    const format::FlushWriter& next = after->writers[rank];
    if (next.turn == writer.turn && next.node != writer.node) return false;
  }
  return true;
}

}  // namespace

bool is_successor(const format::Decree& before, const format::Decree& after) {
  if (after.sequence <= before.sequence || after.incarnation < before.incarnation) return false;
  if (!is_history_kept(before, after) || !is_flush_kept(before.flush, after.flush)) return false;
  if (before.start != after.start) return newer(before.start, after.start) == after.start;
  return after.committed >= before.committed && after.durable >= before.durable;
}

}  // namespace ckpt::agree
