// ControlCalls: the requests of an attached trainer to its node's engine, with or without a daemon.
//
// A call names a Slot with the generation that came with its memory. So a late call, from before a
// new set of Slots or a new daemon, does not hit another Slot of the same number.
#pragma once

#include <chrono>
#include <ckpt/outcome.hpp>
#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "format/copy_note.hpp"
#include "format/layout.hpp"
#include "format/shard_record.hpp"
#include "wire/control_kind.hpp"

namespace ckpt::wire::control {

// Makes (or keeps) the Slots for this layout in the background. Answered by slots_ready or
// slots_failed. Granted or filled Slots of an older version stay valid.
struct SetLayout {
  static constexpr Kind kind{3, "set_layout"};
  format::Layout layout;
  friend auto fields(format::Is<SetLayout> auto& it) { return format::field_list(it.layout); }
};

// A capture: Begin when the trainer takes a granted Slot, then Filled, or Abandon.
struct Begin {
  static constexpr Kind kind{4, "begin"};
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  Step step{};
  friend auto fields(format::Is<Begin> auto& it) {
    return format::field_list(it.slot, it.generation, it.step);
  }
};
// The capture is complete in its Slot; from here on the trainer may die.
struct Filled {
  static constexpr Kind kind{5, "filled"};
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  Step step{};
  std::uint32_t layout_version = 1;
  std::uint64_t blob_bytes = 0;
  std::vector<format::Extent> blobs;
  std::vector<std::string> blob_names;
  std::uint64_t chunk_bytes = 0;
  std::vector<Crc32> chunk_crcs;  // Empty: the engine computes them before it seals.
  // The copies that ranks divide, as this rank has them, whoever captures them.
  std::vector<format::CopyNote> copies;
  friend auto fields(format::Is<Filled> auto& it) {
    return format::field_list(it.slot, it.generation, it.step, it.layout_version, it.blob_bytes,
                              it.blobs, it.blob_names, it.chunk_bytes, it.chunk_crcs, it.copies);
  }
};
struct Abandon {
  static constexpr Kind kind{6, "abandon"};
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  friend auto fields(format::Is<Abandon> auto& it) {
    return format::field_list(it.slot, it.generation);
  }
};
// Sent now and then while a Slot is filled: its first `bytes` are final, so the engine can compute
// their checksums meanwhile. 0 bytes, right after Begin: a GPU fills the Slot, and may go on for a
// while if the trainer dies.
struct Arrived {
  static constexpr Kind kind{31, "arrived"};
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;
  std::uint64_t bytes = 0;
  friend auto fields(format::Is<Arrived> auto& it) {
    return format::field_list(it.slot, it.generation, it.bytes);
  }
};
struct Skipped {
  static constexpr Kind kind{7, "skipped"};
  Step step{};
  friend auto fields(format::Is<Skipped> auto& it) { return format::field_list(it.step); }
};
// Training has come to this step, which is not due. Sent now and then, so that a restore can say
// how many steps were lost. The step may still be captured.
struct Passed {
  static constexpr Kind kind{42, "passed"};
  Step step{};
  friend auto fields(format::Is<Passed> auto& it) { return format::field_list(it.step); }
};
// Sent with a save, due or not: the time of the steps since the last one, without calls of libckpt.
// Flushes and copies give way when training slows down.
struct StepTime {
  static constexpr Kind kind{35, "step_time"};
  std::uint32_t steps = 1;
  std::chrono::nanoseconds time{0};  // For all steps together.
  bool during_capture = false;
  friend auto fields(format::Is<StepTime> auto& it) {
    return format::field_list(it.steps, it.time, it.during_capture);
  }
};

// Slots are granted only after Begun: a session either restores or starts fresh, with all ranks.
// The answers carry `ask`, the trainer's number of the request: an answer may be late, after a
// newer request. Answered by Begun.
struct StartFresh {
  static constexpr Kind kind{8, "start_fresh"};
  std::uint64_t ask = 0;
  bool is_implied = false;  // By a first save: it fails if there is a step to restore.
  bool is_anew = false;     // A session that trains begins again. Else it only goes on.
  friend auto fields(format::Is<StartFresh> auto& it) {
    return format::field_list(it.ask, it.is_implied, it.is_anew);
  }
};
// Answered by Offer, any number of times, then by Begun.
struct AskRestore {
  static constexpr Kind kind{9, "ask_restore"};
  std::uint64_t ask = 0;
  std::optional<Step> wanted;
  // If another number of ranks saved the step, the whole tensors of one shard or several are
  // offered too, not only the tensors of the layout.
  bool joins_shards = false;
  // The tensors that it wants, if some of them have copies at other ranks: captures then have only
  // parts of them. None: those of the layout.
  std::optional<format::Layout> tensors = std::nullopt;
  SourceChoice source = SourceChoice::any;
  friend auto fields(format::Is<AskRestore> auto& it) {
    return format::field_list(
        it.ask, it.wanted, it.joins_shards, it.tensors,
        format::enumerator(it.source, SourceChoice::any, SourceChoice::storage));
  }
};
// Answers the newest offer. ok: verified and copied. corruption: this copy is bad, offer another.
struct RestoreResult {
  static constexpr Kind kind{10, "restore_result"};
  std::uint64_t offer = 0;
  Status result;
  friend auto fields(format::Is<RestoreResult> auto& it) {
    return format::field_list(it.offer, it.result);
  }
};
struct RestoredOk {
  static constexpr Kind kind{11, "restored_ok"};
  Step step{};
  friend auto fields(format::Is<RestoredOk> auto& it) { return format::field_list(it.step); }
};

// The trainer waits until `step` is stored. The engine flushes the newest committed step now, if it
// is not older, whatever the interval says.
struct Flush {
  static constexpr Kind kind{32, "flush"};
  Step step{};
  friend auto fields(format::Is<Flush> auto& it) { return format::field_list(it.step); }
};
// Asks for the state of the session's job. Answered by Answer. The command line sends it, too.
struct AskStatus {
  static constexpr Kind kind{26, "ask_status"};
  friend auto fields(format::Is<AskStatus> auto&) { return format::field_list(); }
};
// Flushes the newest committed step (with a directory), then frees the job's memory here. Answered
// by Closed.
struct Close {
  static constexpr Kind kind{12, "close"};
  std::chrono::milliseconds deadline{0};
  friend auto fields(format::Is<Close> auto& it) { return format::field_list(it.deadline); }
};

using AnyCall =
    std::variant<SetLayout, Begin, Filled, Abandon, Arrived, Skipped, StepTime, StartFresh,
                 AskRestore, RestoreResult, RestoredOk, Flush, AskStatus, Close, Passed>;

}  // namespace ckpt::wire::control
