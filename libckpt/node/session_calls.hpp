// SessionCalls: carries a trainer's messages out as calls of the engine, for one session.
//
// The daemon's server and the embedded link both use it, so that a message means the same in both.
//
// Threads:  the engine's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "node/engine.hpp"
#include "wire/control_message.hpp"

namespace ckpt::node {

// Without the secret: read_secret() reads it. Errors: invalid_argument (no node).
Result<AttachRequest> make_request(const wire::control::Attach& attach);
// Empty where no file is named. It blocks while it reads, and a file system may hang: do not call
// it on the engine's thread. Errors: those of wire::Secret::read_file.
Result<std::string> read_secret(const wire::control::Attach& attach);

class SessionCalls {
 public:
  SessionCalls(Engine& engine, SessionId session);

  SessionId session() const { return session_; }

  // Numbers the Slots that slots_ready announced: a Slot whose memory is another than before gets a
  // number that no other Slot, of this or any earlier daemon, has had.
  const std::vector<std::uint64_t>& number_slots(const std::vector<arena::SlotMemory*>& memories);

  // A call for a Slot that was replaced meanwhile is not carried out: its step is skipped.
  // Errors: those of the engine, invalid_argument (a message that is no trainer's call).
  Status carry_out(wire::control::Message message);

 private:
  bool is_current(std::uint32_t slot, std::uint64_t generation) const;
  Status call(const wire::control::Begin& begin);
  Status call(wire::control::FilledSlot& filled);

  Engine& engine_;
  SessionId session_;
  std::vector<std::span<std::byte>> memories_;  // To compare, never to use: they may be gone.
  std::vector<std::uint64_t> generations_;      // Parallel to memories_.
  std::uint64_t next_generation_;
};

}  // namespace ckpt::node
