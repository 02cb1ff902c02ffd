// StepLevels: the levels that this timeline's steps have reached, and the steps that never will.
//
//   taken --> captured --> replicated --> committed --> durable
//     +--> dropped (by all ranks), skipped (by this one), lost (with an engine's memory)
//
// Invariants: a step that has reached a level has reached the ones before.
// Threads:    under the lock of LinkState.
#pragma once

#include <ckpt/stats.hpp>
#include <ckpt/tensor.hpp>
#include <cstddef>
#include <deque>
#include <optional>

namespace ckpt::client {

class StepLevels {
 public:
  void reached(Step step, Level level);
  void taken(Step step);    // Its capture began.
  void skipped(Step step);  // No capture is made of it, or its capture failed.
  void dropped(Step step);
  // The engine's memory is gone; published steps are not.
  void engine_lost();
  // The next engine has reported what it holds, since it granted a Slot or refused to.
  void engine_spoke() { has_spoken_ = true; }
  void restart(std::optional<Step> restored);  // Another timeline, which went on from `restored`.

  bool has_reached(Step step, Level level) const;
  bool is_dropped(Step step) const;
  // Nothing under way can bring `step`, or a newer one, to a level: no capture of them is left.
  bool has_no_capture(Step step) const;
  bool is_passed(Step step) const { return newest_skipped_ >= step || newest_taken_ >= step; }
  bool is_lost(Step step) const { return has_spoken_ && lost_through_ && step <= *lost_through_; }
  std::optional<Step> newest(Level level) const { return reached_[index_of(level)]; }
  // The newest step that died with an engine, unless storage has it or a newer one.
  std::optional<Step> newest_lost() const;

  void check_invariants() const;

 private:
  static constexpr std::size_t index_of(Level level) { return static_cast<std::size_t>(level) - 1; }
  static constexpr std::size_t level_count = 4;

  std::optional<Step> reached_[level_count];  // The newest that the engine still holds.
  std::deque<Step> dropped_;
  std::deque<Step> under_way_;  // Taken, and not dropped since.
  std::optional<Step> newest_taken_, newest_skipped_;
  std::optional<Step> restored_;  // This rank has it.
  // The newest step that may have died with an engine. The next engine may still know it, from a
  // peer's copy or from storage.
  std::optional<Step> lost_through_;
  bool has_spoken_ = false;
};

// SkipMessages: steps for which the engine gets a message that they are skipped. They keep their
// order among the captures, and need few messages however fast they come.
class SkipMessages {
 public:
  bool add(Step step);  // Whether `step` needs a message of its own.
  Step next();          // The content of the next message, on ckpt-snap.
  void capture_began() { may_grow_ = false; }

  void check_invariants() const;

 private:
  std::deque<Step> steps_;  // One for each message under way.
  bool may_grow_ = false;   // The last one: no capture has begun since.
};

}  // namespace ckpt::client
