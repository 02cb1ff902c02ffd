// SessionEvents: the way from the engine to one trainer's session.
//
// Threads:  the engine's executor; an event must return quickly and not call back into the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "arena/slot_memory.hpp"
#include "wire/control_message.hpp"

namespace ckpt::node {

namespace control = wire::control;

// ReadySlot: one of a session's own Slots.
struct ReadySlot {
  arena::SlotMemory* memory = nullptr;  // Lives as long as the session.
  std::uint64_t generation = 0;  // No other Slot, of this or any other session, has the same one.
  bool is_for_restore = false;   // No capture gets it. Those behind it are for restores, too.
};

class SessionEvents {
 public:
  virtual ~SessionEvents() = default;
  // The own Slots that there are; index i of `slots` is Slot i. Sent again when there are others.
  virtual void slots_ready(std::vector<ReadySlot> slots) = 0;
  virtual void tell(control::Event event) = 0;
};

}  // namespace ckpt::node
