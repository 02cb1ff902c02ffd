// SessionEvents: what the engine tells a trainer's session.
//
// Threads:  the engine's executor; an event must return quickly and not call back into the engine.
#pragma once

#include <ckpt/outcome.hpp>
#include <ckpt/result.hpp>
#include <ckpt/stats.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena/slot_memory.hpp"
#include "format/shard_record.hpp"

namespace ckpt::node {

// SlotOffer: a shard to copy into the trainer's tensors. Only the answer to the newest one counts.
struct SlotOffer {
  std::uint64_t ask = 0;    // As given to ask_restore.
  std::uint64_t offer = 0;  // Which one it is: random.
  std::uint32_t slot = 0;   // One of the session's own Slots: its memory is mapped there.
  std::shared_ptr<const format::ShardRecord> record;
  RestoreSource source = RestoreSource::own_memory;
  std::string source_name;
};

// Filling: how much of the shard that a restore waits for is in a Slot, and verified.
struct Filling {
  std::uint64_t bytes = 0;
  std::uint64_t bytes_total = 0;
  std::string source_name;  // As in SlotOffer.
};

// Begun: how the session starts: the answer to ask_restore, or to the first save without one.
struct Begun {
  std::uint64_t ask = 0;       // As given to ask_restore or start_fresh.
  std::uint64_t start_id = 0;  // Kept by the Link for its Continuation.
  std::uint64_t timeline = 0;
  std::optional<format::StepId> restored;  // None: nothing to restore (not_found), or nobody asked.
  std::optional<Error> error;              // The restore failed for all ranks.
  std::string reason;                      // Why this step, and not a newer one; for people.
};

// Notice: what a deadline that passes in the trainer would leave unsaid; for people.
struct Notice {
  std::string waiting;     // What the session's calls wait for; empty: nothing.
  std::string degraded;    // What the job lacks, or why its steps are not stored; empty: nothing.
  std::string unstorable;  // Why no step can ever be stored; empty: it can.
  bool operator==(const Notice&) const = default;
};

class SessionEvents {
 public:
  virtual ~SessionEvents() = default;
  // All own Slots of the current layout exist; index i of `memories` is Slot i. Sent again when a
  // bigger layout made new ones. `memories` live as long as the session.
  virtual void slots_ready(std::vector<arena::SlotMemory*> memories) = 0;
  virtual void slots_failed(Error error) = 0;         // Over the budget, or no memory.
  virtual void slot_granted(std::uint32_t slot) = 0;  // Free: may be filled.
  virtual void next_capture(Step step) = 0;           // Capture nothing below it.
  virtual void level_reached(Step step, Level level) = 0;
  virtual void step_dropped(Step step) = 0;  // Given up by all ranks.
  virtual void restore_filling(Filling filling) {
    (void)filling;
  }  // Before an offer, now and then.
  virtual void restore_offered(SlotOffer offer) = 0;
  virtual void begun(Begun begun) = 0;
  virtual void closed(Status status) = 0;                     // The answer to close().
  virtual void fenced(std::string reason) = 0;                // A newer session took our place.
  virtual void noticed(Notice notice) = 0;                    // It has changed.
  virtual void status_told(std::string json) { (void)json; }  // The answer to ask_status.
};

}  // namespace ckpt::node
