// SessionLink: the trainer's side of its connection to the node's engine.
//
// It hides the engine's place, death and restart, and the thread that talks to it (`ckpt-snap`).
// Calls become messages for an EngineSide; waits become waits on the LinkState.
#pragma once

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
#include <string>

#include "client/deadline.hpp"
#include "client/link_state.hpp"
#include "device/memory_pins.hpp"
#include "format/layout.hpp"
#include "wire/control_message.hpp"

namespace ckpt::client {

// How a session begins without a restore.
enum class Fresh : std::uint8_t {
  asked,
  implied,  // By a first save.
  anew,     // It has trained, and begins again.
};

// EngineSide: the connection to the engine, with the thread `ckpt-snap` that runs it.
//
// Threads:  post from any thread of the trainer. Lifetime: the destructor says goodbye, within a
//           second, and joins the thread.
class EngineSide {
 public:
  virtual ~EngineSide() = default;
  // Carried out on ckpt-snap, in the order of the calls. While the engine is away, captures are
  // forgotten; the layout, and requests without an answer, are sent to the next engine. A `skipped`
  // gets its step from the LinkState when its turn comes.
  virtual void post(control::Call call) = 0;
  // See SessionLink.
  virtual void keep_mapped_by(std::shared_ptr<device::MemoryPins> pins) { (void)pins; }
  // Releases a mapping, which can take long, on ckpt-snap.
  virtual void let_go(MappedSlot slot) = 0;
};

// Calls do not wait unless they take a deadline.
//
// Threads:   calls come from the training thread, `filled` and `abandon` also from a copy thread.
// Lifetime:  a taken Slot stays mapped until `filled` or `abandon`, even when the daemon is gone.
//            After a fork the child's link returns only errors.
class SessionLink final {
 public:
  // `side` posts its events to `state`.
  SessionLink(std::shared_ptr<LinkState> state, std::unique_ptr<EngineSide> side);
  ~SessionLink();  // For the daemon, the trainer has died.
  SessionLink(const SessionLink&) = delete;
  SessionLink& operator=(const SessionLink&) = delete;

  // Slots mapped from now on are held in `pins`, which keep them pinned for GPUs. Comes before the
  // first layout.
  void keep_mapped_by(std::shared_ptr<device::MemoryPins> pins);

  // Sends the layout, and waits until its Slots are mapped, or the deadline.
  // Errors: exhausted (the budget), unavailable (not ready yet; they are made in the background).
  Status set_layout(const format::Layout& layout, Deadline deadline);
  // The state of the newest layout's Slots. Errors: unavailable (being made), exhausted, io (they
  // could not be made: only another set_layout tries again).
  Status slots_status() const;
  // Begins a new timeline together with the other ranks, and waits until the first Slot is granted,
  // or the deadline. Errors: unavailable (ranks missing), invalid_argument (implied, and there is a
  // step to restore).
  Status start_fresh(Deadline deadline, Fresh how);
  // In a timeline that has begun: waits until a Slot is granted.
  Status wait_granted(Deadline deadline);
  // True when Slots for the newest layout are mapped and the daemon is there.
  bool is_ready() const;
  SessionIdentity identity() const;

  // The ranks agreed to capture nothing below it; 0: nothing was agreed.
  Step next_capture() const;
  std::optional<TakenSlot> take_slot(Step step);  // Also sends `begin` to the engine.
  // The first `bytes` of the Slot are final: the engine may compute their checksums.
  void arrived(const TakenSlot& taken, std::uint64_t bytes);
  void filled(const TakenSlot& taken, control::Filled filled);
  void abandon(const TakenSlot& taken);
  void skipped(Step step);
  // No capture was due: nobody waits for the step.
  void passed(Step step);
  void report_passed(Step step);  // Sends it to the engine, too.
  // Sends the time of steps, so that the engine gives way to training.
  void step_time(const control::StepTime& steps);

  // Asks for a restore, under a number that it gives, and waits until the Slots for it are mapped.
  // The wait ends as soon as the restore is over, so that a job with nothing to restore does not
  // wait. This and restore() do `work` meanwhile, as LinkState. Errors: those of set_layout.
  Status ask_restore(control::AskRestore request, Deadline deadline,
                     const LinkState::Meanwhile& work = {});
  // Runs the restore that was asked for. Calls `copy_out` on this thread for each offer, with the
  // Slot's bytes; it returns ok, or why this copy is bad. Returns the restored step with its
  // source, or the error of all ranks.
  using CopyOut = std::function<Status(const control::Offer& offer, std::span<const std::byte>)>;
  Result<Restored> restore(const CopyOut& copy_out, Deadline deadline,
                           const LinkState::Meanwhile& work = {});
  struct Restoring {  // For both.
    const CopyOut& copy_out;
    LinkState::Meanwhile work;
  };
  // Restores from now on report their progress to `watch` while they wait, and end when it gives
  // up.
  void watch_restores(RestoreWatch watch) { watch_ = std::move(watch); }
  Status restored_ok(Step step);

  // Errors: unavailable (deadline), not_found (given up, skipped or lost), exhausted (it cannot be
  //         stored).
  Status wait(Step step, Level level, Deadline deadline);
  LinkCounters counters() const;
  // The state of the job here, as JSON. Errors: unavailable (the engine is away, the deadline).
  Result<std::string> status(Deadline deadline);
  // The newest step of this timeline that died with an engine, unless storage has it or a newer
  // one.
  std::optional<Step> newest_lost() const;
  Status close(Deadline deadline);

 private:
  // A fork leaves the child a link without its thread. Errors: invalid_argument.
  Status check_process() const;
  bool is_forked() const;

  std::shared_ptr<LinkState> state_;
  std::unique_ptr<EngineSide> side_;
  RestoreWatch watch_;
  Deadline asked_at_{};  // For the newest restore.
  int process_;          // The pid that opened it.
};

// Only rank 0 logs a long wait for Slots: the others wait just as long.
std::shared_ptr<LinkState> make_link_state(const Options& options);

// By options.embedded: opens an engine in this process, or the daemon of the runtime directory,
// which it starts if none runs.
// Errors: unavailable (no daemon in time), version_mismatch, and those of Engine::attach.
Result<std::unique_ptr<SessionLink>> open_link(const Options& options, Deadline deadline);
Result<std::unique_ptr<SessionLink>> open_embedded_link(const Options& options, Deadline deadline);
Result<std::unique_ptr<SessionLink>> open_daemon_link(const Options& options, Deadline deadline);

}  // namespace ckpt::client
