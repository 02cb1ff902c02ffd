// OldWorld: the memory of the ranks that saved the restored step, after another number of ranks (a
// new world) has attached.
//
// Their free Slots go when the new ranks train, or as soon as those need the room. The step stays
// until a newer one is committed, unless the new ranks cannot have their Slots beside it: where
// storage has it, its memory is given up then, since no newer one would ever be committed.
//
//   another number attaches   they restore    they train    a step of theirs is committed
//   changed() --------------> update() -----> let_go() ---> update(): the step may go
//                             at each change of the Job
//
// Threads: the engine's. Lifetime: the Job's.
#pragma once

#include <optional>
#include <set>

#include "node/job_facts.hpp"
#include "node/job_life.hpp"
#include "node/job_storage.hpp"
#include "node/ranks.hpp"
#include "node/slot_table.hpp"

namespace ckpt::node {

// Gives the memory of free Slots back whose ranks have no trainer here. True: there were some.
bool let_go_of_absent(const Ranks& ranks, SlotTable& slots);

class OldWorld {
 public:
  // `given_up` is that of `facts`.
  OldWorld(const JobFacts& facts, std::optional<format::StepId>& given_up, JobLife& life,
           Ranks& ranks, SlotTable& slots, const JobStorage& storage)
      : facts_(facts),
        given_up_(given_up),
        life_(life),
        ranks_(ranks),
        slots_(slots),
        storage_(storage) {}

  void changed();  // Another number of ranks attaches.
  void update();   // Whether the step is given up.
  void let_go();   // The new ranks train.

 private:
  bool may_give_up() const;
  const Error* lack_of_memory() const;  // Null: all that train have theirs.
  void try_again();                     // To make the Slots that could not be made.

  const JobFacts& facts_;
  std::optional<format::StepId>& given_up_;
  JobLife& life_;
  Ranks& ranks_;
  SlotTable& slots_;
  const JobStorage& storage_;
  std::set<std::uint32_t> ranks_before_;  // They had Slots here when the world changed.
  bool is_going_ = false;                 // Given up, and perhaps still held by a reader.
};

}  // namespace ckpt::node
