#include "node/owed_copies.hpp"

#include <fmt/format.h>

namespace ckpt::node {

namespace {

// An attempt that has lasted so long gets on: one that stands still has failed by then.
constexpr Duration failure_counts_for = std::chrono::seconds(25);

}  // namespace

bool OwedCopies::Owed::has_failed(Time now) const {
  return !failure.empty() && now - failed_at < failure_counts_for;
}

void OwedCopies::owe(const Lane& lane, const Copy& copy, Time now) {
  Owed& owed = owed_[lane];
  if (owed.copy != copy) owed = {copy, now, {}, {}};
}

void OwedCopies::failed(const Lane& lane, const Error& error, Time now) {
  const auto owed = owed_.find(lane);
  if (owed == owed_.end()) return;
  owed->second.failed_at = now;
  owed->second.failure = error.message();
}

// Nothing is committed without copies: the Slots fill up, and steps are skipped.
std::string OwedCopies::trouble(Time now, const IsLate& is_late) const {
  std::string all;
  std::string named;  // The target named last. The lanes of one follow each other.
  for (const auto& [lane, owed] : owed_) {
    if (lane.target == named || !is_late(lane.target, owed)) continue;
    named = lane.target;
    const auto times = (now - owed.since) / copy_slow_after;  // Worded anew now and then.
    all += fmt::format("{}the copy of step {} to node {} has been under way for {} s",
                       all.empty() ? "" : "; ", number(owed.copy.first.at.step), lane.target,
                       times * (copy_slow_after / std::chrono::seconds(1)));
    if (owed.has_failed(now)) all += ": " + owed.failure;
  }
  return all;
}

}  // namespace ckpt::node
