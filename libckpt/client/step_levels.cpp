#include "client/step_levels.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::client {

namespace {

// Far more than the captures that can be under way; nobody waits for older ones any more.
constexpr std::size_t dropped_max = 1024;
constexpr std::size_t under_way_max = 1024;

void raise(std::optional<Step>& newest, Step step) {
  if (!newest || *newest < step) newest = step;
}

}  // namespace

void StepLevels::reached(Step step, Level level) {
  for (std::size_t index = 0; index <= index_of(level); ++index) raise(reached_[index], step);
}

void StepLevels::taken(Step step) {
  raise(newest_taken_, step);
  under_way_.push_back(step);
  if (under_way_.size() > under_way_max) under_way_.pop_front();
}

void StepLevels::skipped(Step step) {
  raise(newest_skipped_, step);
  if (newest_taken_ == step) dropped(step);  // Its capture failed.
}

void StepLevels::dropped(Step step) {
  dropped_.push_back(step);
  if (dropped_.size() > dropped_max) dropped_.pop_front();
  std::erase(under_way_, step);
}

void StepLevels::engine_lost() {
  for (const Level level : {Level::captured, Level::replicated, Level::committed})
    reached_[index_of(level)] = newest(Level::durable);
  lost_through_ = std::max(newest_taken_, restored_);
  has_spoken_ = false;
}

void StepLevels::restart(std::optional<Step> restored) {
  const bool has_spoken = has_spoken_;
  *this = StepLevels();
  restored_ = restored;
  has_spoken_ = has_spoken;
}

bool StepLevels::has_reached(Step step, Level level) const {
  return newest(level) >= step;
}

bool StepLevels::is_dropped(Step step) const {
  return std::ranges::find(dropped_, step) != dropped_.end();
}

bool StepLevels::has_no_capture(Step step) const {
  const bool is_under_way = !under_way_.empty() && under_way_.back() >= step;
  // The next engine may yet know steps that the last one had: is_lost says when it does not.
  return !is_under_way && newest(Level::captured) < step && restored_ < step &&
         lost_through_ < step;
}

std::optional<Step> StepLevels::newest_lost() const {
  const bool is_made_up = !lost_through_ || newest(Level::durable) >= lost_through_;
  return is_made_up ? std::nullopt : lost_through_;
}

void StepLevels::check_invariants() const {
  for (std::size_t index = 1; index < level_count; ++index)
    CKPT_ASSERT(reached_[index] <= reached_[index - 1]);
  CKPT_ASSERT(dropped_.size() <= dropped_max);
  CKPT_ASSERT(under_way_.size() <= under_way_max);
  if (!under_way_.empty()) CKPT_ASSERT(under_way_.back() <= newest_taken_);
}

bool SkipMessages::add(Step step) {
  const bool is_new = !std::exchange(may_grow_, true);
  if (is_new) steps_.push_back(step);
  steps_.back() = std::max(steps_.back(), step);
  return is_new;
}

Step SkipMessages::next() {
  CKPT_ASSERT(!steps_.empty());
  const Step step = steps_.front();
  steps_.pop_front();
  if (steps_.empty()) may_grow_ = false;
  return step;
}

void SkipMessages::check_invariants() const {
  if (may_grow_) CKPT_ASSERT(!steps_.empty());
}

}  // namespace ckpt::client
