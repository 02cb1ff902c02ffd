// Link: the trainer's side of its connection to the node's engine, over a socket or in the process.
//
// It hides where the engine runs, that it may die and be started again, and the thread that talks
// to it (`ckpt-snap`). Nothing here waits unless it takes a deadline.
//
// Threads:   calls come from the training thread, `filled` and `abandon` also from a copy thread.
// Lifetime:  what was granted stays mapped until `filled` or `abandon`, also when the daemon is
// gone.
//            After a fork the child's Link only answers `unavailable`.
#pragma once

#include <chrono>
#include <ckpt/options.hpp>
#include <ckpt/outcome.hpp>
#include <ckpt/progress.hpp>
#include <ckpt/result.hpp>
#include <ckpt/stats.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/deadline.hpp"
#include "client/session_slots.hpp"
#include "device/memory_pins.hpp"
#include "format/layout.hpp"
#include "format/shard_record.hpp"
#include "node/engine.hpp"

namespace ckpt::client {

// What the Link counts; read from the training thread.
struct LinkCounters {
  std::uint64_t daemon_restarts = 0;
  std::optional<Step> captured, replicated, committed, durable;  // As in ckpt/stats.hpp.
  std::string last_error;
  std::string degraded;  // As in ckpt/stats.hpp.
};

class Link {
 public:
  virtual ~Link() = default;  // Lets go: for the daemon the trainer has died.

  // Slots that are mapped from now on are held in `pins`, which keep them pinned for GPUs. Before
  // the first layout.
  virtual void keep_mapped_by(std::shared_ptr<device::MemoryPins> pins) { (void)pins; }

  // Tells the layout, and waits until its Slots are mapped, or the deadline.
  // Errors: exhausted (the budget), unavailable (not ready yet; they are made in the background).
  virtual Status set_layout(const format::Layout& layout, Deadline deadline) = 0;
  // How the Slots of the newest layout stand. Errors: unavailable (being made), exhausted, io (they
  // could not be made: only another set_layout tries again).
  virtual Status slots_status() const {
    if (is_ready()) return {};
    return fail(Errc::unavailable, "the Slots are not ready");
  }
  // For a first save without a restore: begins a new timeline together with the other ranks, and
  // waits until the first Slot is granted, or the deadline. Errors: unavailable (ranks missing).
  virtual Status start_fresh(Deadline deadline) = 0;
  // The same of a timeline that has begun: until a Slot is granted.
  virtual Status wait_granted(Deadline deadline) = 0;
  // True when Slots for the newest layout are mapped and the daemon is there.
  virtual bool is_ready() const = 0;

  // What a capture's file header says; the timeline is zero until the session has begun.
  struct Identity {
    format::RunId run;
    std::uint64_t timeline = 0;
  };
  virtual Identity identity() const { return {}; }

  // The ranks agreed to capture nothing below it; 0: nothing was agreed.
  virtual Step next_capture() const = 0;
  virtual std::optional<TakenSlot> take_slot(
      Step step) = 0;  // Also tells the engine that it began.
  // The first `bytes` of the Slot stand as they will be sealed: the engine may take their
  // checksums.
  virtual void arrived(const TakenSlot& taken, std::uint64_t bytes) { (void)taken, (void)bytes; }
  virtual void filled(const TakenSlot& taken, node::Filled filled) = 0;
  virtual void abandon(const TakenSlot& taken) = 0;
  virtual void skipped(Step step) = 0;
  // How long steps took, so that the engine gives way to training.
  virtual void step_time(const node::StepTime& steps) { (void)steps; }
  // No capture was due: who waits for the step need not wait.
  virtual void passed(Step step) { (void)step; }

  // Asks for a restore, and waits until the Slots for it are mapped, unless it is over before:
  // who has nothing to restore need not wait for them. Errors: those of set_layout.
  virtual Status ask_restore(std::optional<Step> wanted, Deadline deadline) = 0;
  // Runs what was asked for: `copy_out` is called on this thread for each offer, with the Slot's
  // bytes, and answers ok or why this copy is bad. Then: from where, or the error for all ranks.
  using CopyOut = std::function<Status(const node::SlotOffer& offer, std::span<const std::byte>)>;
  virtual Result<Restored> restore(const CopyOut& copy_out, Deadline deadline) = 0;
  // Restores from now on tell `watch` how they get on while they wait, and end where it gives up.
  virtual void watch_restores(RestoreWatch watch) { (void)watch; }
  virtual Status restored_ok(Step step) = 0;

  // Errors: unavailable (deadline), not_found (dropped).
  virtual Status wait(Step step, Level level, Deadline deadline) = 0;
  virtual LinkCounters counters() const = 0;
  // How the job stands here, as JSON. Errors: unavailable (the engine is away, the deadline).
  virtual Result<std::string> status(Deadline deadline) {
    (void)deadline;
    return fail(Errc::unavailable, "status: there is no engine");
  }
  // The newest step of this timeline that died with an engine and that storage does not make up
  // for.
  virtual std::optional<Step> newest_lost() const { return std::nullopt; }
  virtual Status close(Deadline deadline) = 0;
};

// By options.embedded: an engine in this process, or the daemon of the runtime directory, started
// when none runs.
// Errors: unavailable (no daemon in time), version_mismatch, and those of Engine::attach.
Result<std::unique_ptr<Link>> open_link(const Options& options, Deadline deadline);
Result<std::unique_ptr<Link>> open_embedded_link(const Options& options, Deadline deadline);
Result<std::unique_ptr<Link>> open_daemon_link(const Options& options, Deadline deadline);

}  // namespace ckpt::client
