// RestoreRoom: the Slots of a rank in which a restored shard is put.
//
// A shard that was put together from pieces may be larger than the rank's captures, or find all
// Slots full of steps to keep. One more Slot is then made, for the time of the restore.
//
// Threads: the engine's. Lifetime: the Job's; its coroutines hold the Job.
#pragma once

#include <memory>

#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/ranks.hpp"
#include "node/slot_table.hpp"

namespace ckpt::node {

class RestoreRoom {
 public:
  RestoreRoom(const JobFacts& facts, JobLife& life, Ranks& ranks, SlotTable& slots)
      : facts_(facts), life_(life), ranks_(ranks), slots_(slots) {}

  // A Slot that is being filled from now on. Copies that were put aside give way to it. Errors:
  // unavailable (there are none yet, or all are in use), invalid_argument (they are too small),
  // exhausted (and larger ones could not be made).
  Result<std::shared_ptr<arena::Slot>> take(const format::ShardId& id, std::uint64_t bytes);
  // Returns once a Slot can be taken, or all are made: the first one may hold another step.
  Task<void> wait_for_making(format::ShardId shard);
  // Returns once take() finds a Slot and the rank's trainer has it mapped. Errors: exhausted (with
  // the numbers), cancelled (the trainer died).
  Task<void> wait(format::ShardId shard, SessionId id, std::uint64_t bytes);
  // The error of a restore whose Slots could not be made. A code that is not of memory may ask the
  // trainer to try again, or to begin anew.
  static Error no_room(const Error& why);
  // Whether a shard does not fit its trainer's tensors, or memory. It fits no better from another
  // source.
  bool does_not_fit(std::uint32_t rank, const Error& error) const;
  // The Slots of another number of ranks do not fit beside the step that is restored, and storage
  // has it: it gives way when they train (node/old_world.hpp). One Slot is enough until then.
  bool will_have_room() const;

 private:
  OwnSlot* best_for(const format::ShardId& id, std::uint64_t bytes);
  bool is_of_others() const;
  bool let_go_for(std::uint32_t rank);  // True: memory of free Slots was given back.

  const JobFacts& facts_;
  JobLife& life_;
  Ranks& ranks_;
  SlotTable& slots_;
};

}  // namespace ckpt::node
