// ControlEvents: an engine's messages to a trainer's session, with or without a daemon.
//
// The Slots themselves are announced apart from these: in the engine's process by their memory,
// over the socket by SlotSegments and SlotsReady.
#pragma once

#include <ckpt/outcome.hpp>
#include <ckpt/result.hpp>
#include <ckpt/stats.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "format/shard_record.hpp"
#include "wire/control_kind.hpp"

namespace ckpt::wire::control {

// The Slots of the layout cannot be made: over the budget, or no memory.
struct SlotsFailed {
  static constexpr Kind kind{17, "slots_failed"};
  Status result;  // Always an error.
  friend auto fields(format::Is<SlotsFailed> auto& it) { return format::field_list(it.result); }
};
// A free Slot: it may be filled.
struct Granted {
  static constexpr Kind kind{18, "granted"};
  std::uint32_t slot = 0;
  friend auto fields(format::Is<Granted> auto& it) { return format::field_list(it.slot); }
};
struct NextCapture {
  static constexpr Kind kind{19, "next_capture"};
  Step step{};  // Capture nothing below it.
  friend auto fields(format::Is<NextCapture> auto& it) { return format::field_list(it.step); }
};
struct LevelReached {
  static constexpr Kind kind{20, "level_reached"};
  Step step{};
  Level level = Level::captured;
  friend auto fields(format::Is<LevelReached> auto& it) {
    return format::field_list(it.step,
                              format::enumerator(it.level, Level::captured, Level::durable));
  }
};
struct StepDropped {
  static constexpr Kind kind{21, "step_dropped"};
  Step step{};  // Given up by all ranks.
  friend auto fields(format::Is<StepDropped> auto& it) { return format::field_list(it.step); }
};

// Sent a few times a second, while a restore waits for its shard.
struct Filling {
  static constexpr Kind kind{34, "filling"};
  std::uint64_t bytes = 0;  // In a Slot and verified.
  std::uint64_t bytes_total = 0;
  std::string source_name;  // As in Offer.
  friend auto fields(format::Is<Filling> auto& it) {
    return format::field_list(it.bytes, it.bytes_total, it.source_name);
  }
};
// A shard to copy into the trainer's tensors. Only the answer to the newest offer counts.
struct Offer {
  static constexpr Kind kind{22, "offer"};
  std::uint64_t ask = 0;    // As given in AskRestore.
  std::uint64_t offer = 0;  // Its random number.
  std::uint32_t slot = 0;   // One of the session's own Slots, which the trainer has mapped.
  RestoreSource source = RestoreSource::own_memory;
  std::string source_name;
  std::uint32_t saved_by = 1;  // The number of ranks that saved the step.
  std::uint64_t bytes_from_storage = 0;
  std::shared_ptr<const format::ShardRecord> record;
  friend auto fields(format::Is<Offer> auto& it) {
    return format::field_list(
        it.ask, it.offer, it.slot,
        format::enumerator(it.source, RestoreSource::own_memory, RestoreSource::storage),
        it.source_name, it.saved_by, it.bytes_from_storage, it.record);
  }
};
// The start of the session: the answer to AskRestore, or to StartFresh.
struct Begun {
  static constexpr Kind kind{23, "begun"};
  std::uint64_t ask = 0;       // As given in AskRestore or StartFresh.
  std::uint64_t start_id = 0;  // Kept by the trainer for its Continuation.
  std::uint64_t timeline = 0;
  std::optional<format::StepId> restored;  // None: nothing to restore, or a fresh start.
  Status result;                           // An error: the restore failed for all ranks.
  std::string reason;                      // Why this step, and not a newer one; for people.
  std::optional<Step> newest_seen = std::nullopt;  // As in Start.
  friend auto fields(format::Is<Begun> auto& it) {
    return format::field_list(it.ask, it.start_id, it.timeline, it.restored, it.result, it.reason,
                              it.newest_seen);
  }
};

// Sent whenever a field changes; for people. Empty: nothing.
struct Notice {
  static constexpr Kind kind{33, "notice"};
  std::string waiting;   // Why the session's calls wait.
  std::string degraded;  // Missing protection, or why steps are not stored.
  std::string differ;    // Copies that were not the same, at the newest save to storage.
  friend auto fields(format::Is<Notice> auto& it) {
    return format::field_list(it.waiting, it.degraded, it.differ);
  }
  bool operator==(const Notice&) const = default;
};
// The answer to AskStatus, and to each question of the command line.
struct Answer {
  static constexpr Kind kind{30, "answer"};
  Status result;
  std::string json;
  friend auto fields(format::Is<Answer> auto& it) { return format::field_list(it.result, it.json); }
};
// The answer to Close.
struct Closed {
  static constexpr Kind kind{24, "closed"};
  Status result;
  friend auto fields(format::Is<Closed> auto& it) { return format::field_list(it.result); }
};
// A newer session took this one's place.
struct Fenced {
  static constexpr Kind kind{25, "fenced"};
  std::string reason;
  friend auto fields(format::Is<Fenced> auto& it) { return format::field_list(it.reason); }
};

using AnyEvent = std::variant<SlotsFailed, Granted, NextCapture, LevelReached, StepDropped, Filling,
                              Offer, Begun, Notice, Answer, Closed, Fenced>;

}  // namespace ckpt::wire::control
