// Session: one trainer process as the engine sees it.
//
// Threads: the engine's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arena/slot.hpp"
#include "base/assert.hpp"
#include "base/change_checked.hpp"
#include "node/engine_options.hpp"
#include "node/session_events.hpp"
#include "node/slot_table.hpp"
#include "node/take_over.hpp"

namespace ckpt::node {

struct Session {
  // Captures of the version before may still be under way; older ones cannot.
  static constexpr std::size_t layouts_max = 2;

  SessionId id{};
  SessionEvents* events = nullptr;  // Null once the trainer is gone.
  std::int64_t process = 0;         // As AttachRequest says.
  bool is_fenced = false;

  // How it begins (format/agreement.hpp, StartPhase).
  format::StartPhase phase = format::StartPhase::idle;
  // It takes part in a Start under this number, which changes when the trainer asks anew or asks no
  // more. So a Start of what it asked before is over for it and for the others.
  std::uint64_t asker = 0;
  std::uint64_t ask = 0;        // The trainer's own number of what it asked last, for the answers.
  bool trained_before = false;  // It goes on as it was when the restore it asks for fails.
  std::optional<Step> wanted;
  SourceChoice source = SourceChoice::any;
  std::uint64_t attempt = 0;         // The attempt of `current_start`, while ready or failed.
  std::uint64_t current_start = 0;   // The Start that ready, failed and running speak of.
  std::uint64_t finished_start = 0;  // The last Start that ended for this session.
  std::uint64_t timeline = 0;
  std::optional<format::StepId> durable_before;  // When the timeline began.
  bool is_copying = false;                       // A coroutine fills and offers the shard.
  std::optional<std::pair<std::uint64_t, Status>> copy_result;  // An offer, and how it went.
  std::string failure;
  Errc failure_code{};
  bool joins_shards = false;                             // As control::AskRestore says.
  std::shared_ptr<const format::Layout> wanted_tensors;  // Likewise; null: those of its captures.

  // The name of a Slot in its calls. Sessions never share one, since their ids are random.
  std::uint64_t generation_of(const OwnSlot& own) const {
    return static_cast<std::uint64_t>(id) + own.number;
  }

  void check_invariants() const {
    using enum format::StartPhase;
    CKPT_ASSERT(id != SessionId{});
    if (phase == running) CKPT_ASSERT(current_start == finished_start);
    if (phase == ready) CKPT_ASSERT(failure.empty());
    if (is_closing || is_closed) CKPT_ASSERT(close_deadline.has_value());
    CKPT_ASSERT(layouts.size() <= layouts_max);
  }

  // Records how its part in the Start ended.
  void answer(const format::Start& start, format::StartPhase how, const Status& brought) {
    CKPT_ASSERT(start.outcome.is_pending());
    CKPT_ASSERT((how == format::StartPhase::ready) == brought.has_value());
    change_checked(*this, [&] {
      current_start = start.start_id;
      attempt = start.attempt;
      phase = how;
      failure = brought ? "" : brought.error().message();
      failure_code = brought ? Errc{} : brought.error().code();
    });
  }

  // The Start goes: its trainer trains, in the timeline that begins. `durable`: at this moment.
  void begin(const format::Start& start, const std::optional<format::StepId>& durable) {
    CKPT_ASSERT(!is_fenced);
    change_checked(*this, [&] {
      phase = format::StartPhase::running;
      current_start = finished_start = start.start_id;
      timeline = start.timeline;
      durable_before = durable;
      committed_sent.reset();
      durable_sent.reset();
      last_seen.reset();
      flush_wanted.reset();  // Its step is no more.
      next_capture_sent.reset();
      restored_ok = false;
    });
  }
  // The Start failed, for all ranks.
  void miss(const format::Start& start) {
    CKPT_ASSERT(start.outcome.has_failed());
    change_checked(*this, [&] {
      finished_start = start.start_id;
      phase = format::StartPhase::idle;
      if (trained_before) train_on();
    });
  }

  // As it was when it goes on after a restart of the daemon, or after a restore that failed.
  void continue_as(const control::Continuation& continues) {
    change_checked(*this, [&] {
      phase = format::StartPhase::running;
      current_start = finished_start = continues.start_id;
      timeline = continues.timeline;
    });
  }
  bool is_asking_after_training() const {
    using enum format::StartPhase;
    return trained_before && phase != idle && phase != running;
  }
  // To restore, to begin, or to begin anew; until the next Start, or until it goes on as before.
  void ask_to(format::StartPhase how, std::uint64_t new_asker) {
    change_checked(*this, [&] {
      trained_before = phase == format::StartPhase::running || is_asking_after_training();
      asker = new_asker;
      phase = how;
      attempt = 0;
      current_start = 0;
      copy_result.reset();
      failure.clear();
      failure_code = Errc{};
    });
  }
  // Nobody waits for the restore any more: its trainer goes on as before it asked.
  void withdraw(std::uint64_t new_asker) {
    CKPT_ASSERT(is_asking_after_training());
    asker = new_asker;
    train_on();
  }
  void train_on() {
    CKPT_ASSERT(trained_before);
    change_checked(*this, [&] {
      phase = format::StartPhase::running;
      current_start = finished_start;
      copy_result.reset();
      failure.clear();
    });
  }

  // Its captures.
  std::optional<Step> last_seen;
  std::optional<LastCapture> captured;
  bool restored_ok = false;
  std::optional<Step> flush_wanted;  // It waits until this step is durable.
  std::map<std::uint32_t, std::shared_ptr<const format::Layout>> layouts;  // By version.

  // How it ends.
  std::optional<Time> close_deadline;  // Set by close().
  bool is_closing = false;             // All its captures are settled.
  bool is_closed = false;              // `Closed` was sent.

  // The layout of its next capture; null: it has not said.
  const format::Layout* newest_layout() const {
    return layouts.empty() ? nullptr : layouts.rbegin()->second.get();
  }
  // The layout that a restore brings it; null: it has not said.
  const format::Layout* restored_layout() const {
    return wanted_tensors ? wanted_tensors.get() : newest_layout();
  }

  // Already sent to it.
  bool slots_sent = false;
  std::optional<format::StepId> committed_sent, durable_sent;
  std::optional<Step> next_capture_sent;
  control::Notice notice_sent;
  std::uint64_t announced_start = 0;  // Its bytes are here, and will be offered.
};

}  // namespace ckpt::node
