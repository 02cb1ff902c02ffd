// LinkView: the trainer's knowledge of its session with the engine.
//
//   connecting --attached--> attached <--attached/lost--> away
//                               +--> ended: fenced, refused (for good)
//
// Invariants: `end` is set exactly while the engine is away or the session has ended. No Slot of an
//             engine that is away is mapped. `begun` answers the newest request.
// Threads:    under the lock of LinkState. The caller releases returned mappings outside of it.
#pragma once

#include <ckpt/progress.hpp>
#include <ckpt/result.hpp>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "client/deadline.hpp"
#include "client/session_slots.hpp"
#include "client/step_levels.hpp"
#include "wire/control_message.hpp"

namespace ckpt::client {

namespace control = wire::control;

// Silence: the daemon is there but does not answer.
struct Silence {
  Deadline since;
  int process = 0;       // The daemon's.
  std::string log_path;  // The daemon's.
};

struct OfferedSlot {
  control::Offer offer;
  MappedSlot slot;
};

// LinkCounters: the part of ckpt/stats.hpp that comes from the engine.
struct LinkCounters {
  std::uint64_t daemon_restarts = 0;
  std::optional<Step> captured, replicated, committed, durable;
  // The newest step that an engine which lives, or storage, is known to hold. Unlike `captured`, it
  // falls when an engine dies with its memory.
  std::optional<Step> saved;
  std::string last_error;
  std::string degraded;
};

// SessionIdentity: goes into a capture's file header. The timeline is zero until the session has
// begun.
struct SessionIdentity {
  format::RunId run;
  std::uint64_t timeline = 0;
};

struct LinkView {
  enum class Phase : std::uint8_t { connecting, attached, away, ended };
  // Mappings to release, which takes long for large ones.
  struct Released {
    SessionSlots::Cleared slots;
    std::deque<OfferedSlot> offers;
  };

  Released lose(const std::string& reason);  // The engine is gone; a new one may come.
  void reach(Step step, Level level);
  Released begin(control::Begun answer);
  void offer(control::Offer offered);

  bool is_over() const { return phase == Phase::ended; }
  // Before, the engine may still speak of what the trainer before this one met.
  bool has_begun() const { return identity.timeline != 0; }
  bool is_lost(Step step) const;
  std::string degraded() const;
  // One Slot is enough. Where no Slots can be had for captures, the engine knows whether there is
  // a step at all, and whether the Slots that are there do for it: it answers for all ranks.
  bool needs_no_more_slots_to_restore() const {
    return begun || slots_error || slots.can_restore();
  }
  RestoreProgress restore_progress() const;
  // How far the newest step of each level is: "step 5 is captured, step 4 is durable".
  std::string levels_text() const;
  // Why a wait failed: "; the daemon is away: ...; it waits: ...".
  std::string delays() const;
  void check_invariants() const;

  Phase phase = Phase::connecting;
  bool was_attached = false;  // Before it was lost.
  std::optional<Error> end;   // Why it ended, or why it is away.
  int process = 0;            // The last daemon that took our connection.
  SessionIdentity identity;

  SessionSlots slots;
  std::optional<Error> slots_error;
  StepLevels levels;
  SkipMessages skips;
  Step next_capture{};

  std::uint64_t ask = 0;  // The newest request; answers to older ones are late.
  std::optional<control::Begun> begun;
  std::deque<OfferedSlot> offers;
  std::optional<control::Filling> filling;  // Since the request, or the last offer.
  std::optional<Status> closed;
  std::optional<std::string> status;  // The engine's newest answer.

  std::string waiting;  // The engine's reason for a wait.
  std::string differ;   // Copies that differ, as the engine said last.
  std::optional<Silence> silence;
  LinkCounters counters;  // Without the part that `degraded()` adds.
};

}  // namespace ckpt::client
