// LinkState: the LinkView of a session under its lock. Events of the engine change it; the
// trainer's threads read it and wait for it.
//
// Invariants: those of LinkView, checked before and after each change.
// Threads:   the events come on ckpt-snap; everything else from the trainer's threads, which may
//            wait here, with a deadline.
#pragma once

#include <ckpt/outcome.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/change_checked.hpp"
#include "base/monitor.hpp"
#include "client/link_view.hpp"

namespace ckpt::client {

class LinkState {
 public:
  // Errors name `who`: "rank 3 of job gpt2". A wait for Slots, or for the end of a close, that
  // lasts longer than `log_after` is logged once; none: never.
  explicit LinkState(std::string who, std::optional<std::chrono::milliseconds> log_after = {})
      : who_(std::move(who)), log_after_(log_after) {}

  // --- Events, on ckpt-snap ---
  void connected(int process);  // This daemon may not answer yet.
  void attached(const format::RunId& run);
  void lost(const std::string& reason);  // The engine is gone; a new one may come.
  void refused(Error error);             // There will be no engine.
  void slots_ready(std::vector<MappedSlot> slots);
  void notify(control::Event event);  // Calls one of those below.
  void slots_failed(Error error);
  void slot_granted(std::uint32_t slot);
  void next_capture(Step step);
  void level_reached(Step step, Level level);
  void step_dropped(Step step);
  void restore_filling(control::Filling filling);
  void restore_offered(control::Offer offer);
  void begun(control::Begun begun);
  void closed(Status status);
  void fenced(std::string reason);
  void noticed(control::Notice notice);
  void silent(Silence silence);  // The daemon is there but does not answer.
  void heard_again();
  void forget_slots();  // Releases all mappings.
  // The same, except for those that a capture writes into. True: there are none of these.
  bool forget_idle_slots();

  // --- The trainer's threads ---
  // `directory`: the one that the daemon reads before it answers, for the message; may be empty.
  Status wait_attached(Deadline deadline, const std::string& directory) const;
  void ask_layout(std::uint64_t slot_bytes);  // Before the engine is asked.
  Status wait_slots(Deadline deadline) const;
  // For a restore that was asked for: waits until there are Slots, or it has its answer, or `watch`
  // gives up.
  // Once bytes are on their way, this and the wait for an offer do some of `work` at a time. It
  // returns false when nothing is left to do.
  using Meanwhile = std::function<bool()>;
  Status wait_slots_for_restore(Deadline deadline, const RestoreWatch& watch,
                                const Meanwhile& work = {}) const;
  bool is_ready() const;
  SessionIdentity identity() const;

  Step next_capture() const;
  std::optional<TakenSlot> take_slot(Step step);  // For the capture of `step`.
  // Records that `step` gets no capture. The steps must grow.
  void skipped(Step step);
  // The engine gets skipped steps in their order among the captures, in few messages however fast
  // they come. add_skip() returns whether `step` needs a message; next_skip(), on ckpt-snap,
  // returns the step of the next message.
  bool add_skip(Step step);
  Step next_skip();
  // Ends the use of a taken Slot. Returns the mapping, to be released on another thread.
  MappedSlot give_back(const TakenSlot& taken);

  // Called before a restore, or a fresh start, is asked for. Return the number to ask with. None:
  // the session has begun meanwhile, and does not begin anew.
  std::uint64_t ask_begin();
  std::optional<std::uint64_t> ask_fresh(bool is_anew = false);
  Status wait_fresh(Deadline deadline) const;
  // The next offer, or none: the restore has ended, see `begun_answer`. Reports the progress to
  // `watch`, which ends the wait by returning false.
  Result<std::optional<OfferedSlot>> wait_offer(Deadline deadline, const RestoreWatch& watch = {},
                                                const Meanwhile& work = {});
  Result<control::Begun> begun_answer() const;

  Status ask_status();  // Before the engine is asked. Errors: unavailable (no engine now).
  Result<std::string> wait_status(Deadline deadline) const;

  Status wait_level(Step step, Level level, Deadline deadline) const;
  void ask_close();
  Status wait_closed(Deadline deadline) const;
  LinkCounters counters() const;
  std::optional<Step> newest_lost() const;

 private:
  using Phase = LinkView::Phase;

  // Changes the view, and checks its invariants before and after.
  template <class Change>
  auto change(Change change);
  // Waits for `holds`, or for the end of the session, which is an error.
  template <class Holds>
  Status wait_for(Deadline deadline, std::string_view what, Holds holds,
                  std::string_view late = "the deadline passed", const Meanwhile& work = {}) const;
  // Returns false if the deadline passed first.
  template <class Holds>
  bool wait_until(Deadline deadline, Holds holds, const Meanwhile& work) const;
  template <class IsOver>
  bool lasts_long(Deadline deadline, IsOver is_over, const Meanwhile& work = {}) const;
  template <class IsNeedless>
  Status wait_slots_unless(IsNeedless is_needless, Deadline deadline,
                           const RestoreWatch& watch = {}, const Meanwhile& work = {}) const;
  // Reports to `watch` until it is over or the deadline passes. Errors: unavailable (`watch` gave
  // up).
  template <class IsOver>
  Status report_until(IsOver is_over, Deadline deadline, const RestoreWatch& watch,
                      const Meanwhile& work) const;
  Unexpected end_of(const LinkView& view) const;
  std::string stopped_daemon() const;  // To append to an error; empty: it is not stopped.

  std::string who_;
  std::optional<std::chrono::milliseconds> log_after_;
  Monitor<LinkView> view_;
};

template <class Change>
auto LinkState::change(Change change) {
  return view_.change(
      [&](LinkView& view) { return change_checked(view, [&] { return change(view); }); });
}

}  // namespace ckpt::client
