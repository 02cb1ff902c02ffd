// LinkState: what the trainer knows of its session: the engine's events, kept until someone asks.
//
//   connecting --attached--> attached <--attached/lost--> away
//                               +--> fenced, refused (for good)
//
// Threads:   the events come on ckpt-snap; everything else from the trainer's threads, which may
//            wait here, with a deadline.
#pragma once

#include <ckpt/outcome.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/monitor.hpp"
#include "client/link.hpp"

namespace ckpt::client {

// MappedSlot: one of our Slots as this process sees it. `owner` keeps it mapped.
struct MappedSlot {
  std::uint64_t generation = 0;
  std::span<std::byte> bytes;
  std::shared_ptr<const void> owner;
};

class LinkState {
 public:
  // `who` is named in errors: "rank 3 of job gpt2". Who waits for Slots longer than `tells_after`
  // is told so by a line in the log; none: never.
  explicit LinkState(std::string who, std::optional<std::chrono::milliseconds> tells_after = {})
      : who_(std::move(who)), tells_after_(tells_after) {}

  // --- Events, on ckpt-snap ---
  void connected(int process);  // To this one, which may not answer yet.
  void attached(const format::RunId& run);
  void lost(const std::string& reason);  // The engine is gone; a new one may come.
  void refused(Error error);             // There will be none.
  void slots_ready(std::vector<MappedSlot> slots);
  void slots_failed(Error error);
  void slot_granted(std::uint32_t slot);
  void next_capture(Step step);
  void level_reached(Step step, Level level);
  void step_dropped(Step step);
  void restore_filling(node::Filling filling);
  void restore_offered(node::SlotOffer offer);
  void begun(node::Begun begun);
  void closed(Status status);
  void fenced(std::string reason);
  void noticed(node::Notice notice);
  void status_told(std::string json);
  struct Silence {
    Deadline since;
    int process = 0;       // The daemon's.
    std::string log_path;  // Likewise.
  };
  void silent(Silence silence);  // It is there, and does not answer.
  void heard_again();
  void forget_slots();  // Whatever still maps them lets go.
  // The same but for those that a capture writes into: whether there are none.
  bool forget_idle_slots();

  // --- The trainer's threads ---
  Status wait_attached(Deadline deadline) const;
  void ask_layout(std::uint64_t slot_bytes);  // Before the engine is asked.
  Status wait_slots(Deadline deadline) const;
  // Of a restore that has been asked for: until there are Slots, or it has its answer, or `watch`
  // gives up.
  Status wait_slots_or_begun(Deadline deadline, const RestoreWatch& watch) const;
  bool is_ready() const;
  Link::Identity identity() const;

  Step next_capture() const;
  std::optional<Granted> take_slot(Step step);  // For the capture of `step`.
  // Steps that grow, none of which a capture will be made of.
  void skipped(Step step);
  // The engine is told of them, in their order among the captures, and by few messages however fast
  // they come: whether `step` needs one. Then what the next of the messages says, on ckpt-snap.
  bool add_skip(Step step);
  Step next_skip();
  // What was taken is no longer used; the mapping is returned, to be let go on another thread.
  MappedSlot give_back(const Granted& granted);

  // Before a restore, or a fresh start, is asked for: the number to ask with. None: it has begun
  // meanwhile.
  std::uint64_t ask_begin();
  std::optional<std::uint64_t> ask_fresh();
  bool has_begun() const;
  Status wait_fresh(Deadline deadline) const;
  struct OfferedSlot {
    node::SlotOffer offer;
    MappedSlot slot;
  };
  // The next offer, or none: the restore has ended, see `begun_answer`. While it waits, `watch` is
  // told how the engine gets on, and ends it by answering false.
  Result<std::optional<OfferedSlot>> wait_offer(Deadline deadline, const RestoreWatch& watch = {});
  Result<node::Begun> begun_answer() const;

  Status ask_status();  // Before the engine is asked. Errors: unavailable (there is none now).
  Result<std::string> wait_status(Deadline deadline) const;

  Status wait_level(Step step, Level level, Deadline deadline) const;
  void ask_close();
  Status wait_closed(Deadline deadline) const;
  LinkCounters counters() const;
  std::optional<Step> newest_lost() const;

 private:
  enum class Phase : std::uint8_t { connecting, attached, away, ended };
  struct GrantedSlot {
    std::uint32_t slot = 0;
    MappedSlot mapped;
  };
  struct View {
    Phase phase = Phase::connecting;
    std::optional<Error> end;  // Why it ended, or why it is away.
    int process = 0;           // The daemon's, the last one that took our connection.
    Link::Identity identity;

    std::uint64_t slot_bytes = 0;  // Of the newest layout.
    std::vector<MappedSlot> slots;
    std::optional<Error> slots_error;
    std::deque<GrantedSlot> granted;
    std::vector<GrantedSlot> taken;
    Step next_capture{};

    std::uint64_t ask = 0;  // What was asked last; answers to anything before are late.
    std::optional<node::Begun> begun;
    std::deque<OfferedSlot> offers;
    std::optional<node::Filling> filling;  // Since it was asked, or the last offer.
    std::optional<Status> closed;
    std::optional<std::string> status;  // As the engine told it to who asks now.

    std::optional<Step> reached[5];  // By Level; what the engine still holds.
    std::deque<Step> dropped;
    std::optional<Step> newest_taken, newest_skipped;
    std::optional<Step> restored;    // What the timeline went on from: this rank has it.
    std::deque<Step> skips;          // One for each message under way.
    bool is_last_skip_open = false;  // No capture has begun since: it may still grow.
    // No newer ones died with an engine. The next engine may still know them, by a peer's copy or
    // by storage; it has said so when it grants.
    std::optional<Step> lost_through;
    bool has_granted = false;  // The engine of now, or it has said why it cannot.
    std::string waiting;       // What the engine says it waits for.
    std::string unstorable;    // Why it can store no step; empty: it can.
    std::optional<Silence> silence;
    LinkCounters counters;  // But for what `degraded()` adds.

    std::string degraded() const;
    bool has_fitting_grant() const;
    void note_dropped(Step step);
    // Nothing under way can bring `step`, or a newer one, to a level.
    bool is_skipped(Step step) const {
      return newest_skipped >= step && newest_taken < step && restored < step;
    }
    bool is_lost(Step step) const {
      return phase == Phase::attached && has_granted && lost_through && step <= *lost_through;
    }
  };

  // Waits for `holds`, or for the end of the session, which is the error.
  template <class Holds>
  Status wait_for(Deadline deadline, std::string_view what, Holds holds,
                  std::string_view late = "the deadline passed") const;
  template <class IsOver>
  void tell_of_slots(Deadline deadline, IsOver is_over) const;
  template <class IsNeedless>
  Status wait_slots_unless(IsNeedless is_needless, Deadline deadline,
                           const RestoreWatch& watch = {}) const;
  // Tells `watch` until it is over, or the deadline comes first. Errors: unavailable (it gave up).
  template <class IsOver>
  Status tell_until(IsOver is_over, Deadline deadline, const RestoreWatch& watch) const;
  Unexpected end_of(const View& view) const;
  std::string stopped_daemon() const;  // For the end of a text; empty when it is not stopped.
  RestoreProgress restore_progress() const;

  std::string who_;
  std::optional<std::chrono::milliseconds> tells_after_;
  Monitor<View> view_;
};

}  // namespace ckpt::client
