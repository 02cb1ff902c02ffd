#include "client/link_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "arena/arena_limits.hpp"
#include "base/assert.hpp"
#include "base/log.hpp"
#include "client/restore_teller.hpp"
#include "os/process.hpp"

namespace ckpt::client {

namespace {

// Far more than the captures that can be under way; older ones nobody waits for any more.
constexpr std::size_t dropped_max = 1024;
// An engine sends one at a time; more only while a restore is repeated without us looking.
constexpr std::size_t offers_max = 16;

std::size_t index_of(Level level) {
  return static_cast<std::size_t>(level);
}

void raise(std::optional<Step>& newest, Step step) {
  if (!newest || *newest < step) newest = step;
}

}  // namespace

std::string LinkState::View::degraded() const {
  if (!silence) return counters.degraded;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::steady_clock::now() - silence->since);
  std::string text = fmt::format(
      "the daemon, pid {}, has not answered for {} s: it is stopped or hangs; its log is {}",
      silence->process, seconds.count(), silence->log_path);
  if (!counters.degraded.empty()) text += "; " + counters.degraded;
  return text;
}

bool LinkState::View::has_fitting_grant() const {
  return std::any_of(granted.begin(), granted.end(), [this](const GrantedSlot& grant) {
    return grant.mapped.bytes.size() >= slot_bytes;
  });
}

void LinkState::View::note_dropped(Step step) {
  dropped.push_back(step);
  if (dropped.size() > dropped_max) dropped.pop_front();
}

Unexpected LinkState::end_of(const View& view) const {
  CKPT_ASSERT(view.end.has_value());
  return fail(Error(*view.end));
}

std::string LinkState::stopped_daemon() const {
  const int process = view_.read([](const View& view) { return view.process; });
  const auto is_stopped = os::is_stopped(process);
  if (!is_stopped || !*is_stopped) return {};
  return "; the daemon is " + os::describe_process(process);
}

template <class Holds>
Status LinkState::wait_for(Deadline deadline, std::string_view what, Holds holds,
                           std::string_view late) const {
  const bool is_over = view_.wait_until(
      deadline, [&](const View& view) { return holds(view) || view.phase == Phase::ended; });
  const std::string stopped = is_over ? std::string() : stopped_daemon();
  return view_.read([&](const View& view) -> Status {
    if (holds(view)) return {};
    if (view.phase == Phase::ended) return end_of(view);
    std::string text = fmt::format("{}: {}: {}", who_, what, late);
    if (view.phase == Phase::away) text += "; the daemon is away: " + view.end->text();
    if (!view.waiting.empty()) text += "; it waits: " + view.waiting;
    if (const std::string degraded = view.degraded(); !degraded.empty()) text += "; " + degraded;
    return fail(Errc::unavailable, text + stopped);
  });
}

// --- Events ---

void LinkState::connected(int process) {
  view_.change([&](View& view) { view.process = process; });
}

void LinkState::attached(const format::RunId& run) {
  view_.change([&](View& view) {
    view.phase = Phase::attached;
    view.end.reset();
    view.identity.run = run;
  });
}

void LinkState::lost(const std::string& reason) {
  // Mappings are let go outside of the lock: it takes long for large ones.
  std::vector<MappedSlot> slots;
  std::deque<GrantedSlot> granted;
  std::deque<OfferedSlot> offers;
  view_.change([&](View& view) {
    if (view.phase == Phase::ended) return;
    if (view.phase == Phase::attached) ++view.counters.daemon_restarts;
    view.phase = Phase::away;
    view.end = Error(Errc::unavailable, reason);
    view.counters.last_error = reason;
    slots.swap(view.slots);
    granted.swap(view.granted);
    offers.swap(view.offers);
    view.filling.reset();
    view.slots_error.reset();
    view.next_capture = Step{};
    // The next engine says what holds it up, and nothing when nothing does.
    view.waiting.clear();
    view.unstorable.clear();
    view.silence.reset();
    view.counters.degraded.clear();
    // What its memory held is gone; what it had published is not.
    for (const Level level : {Level::captured, Level::replicated, Level::committed})
      view.reached[index_of(level)] = view.reached[index_of(Level::durable)];
    view.lost_through = std::max(view.newest_taken, view.restored);
    view.has_granted = false;
  });
}

void LinkState::refused(Error error) {
  view_.change([&](View& view) {
    if (view.phase == Phase::ended) return;
    view.phase = Phase::ended;
    view.counters.last_error = error.message();
    view.end = std::move(error);
  });
}

void LinkState::fenced(std::string reason) {
  log_error("{}: fenced: {}", who_, reason);
  refused(Error(Errc::unavailable, fmt::format("{} was taken over: {}", who_, reason)));
}

void LinkState::noticed(node::Notice notice) {
  const std::string before = view_.change([&](View& view) {
    view.waiting = std::move(notice.waiting);
    view.unstorable = std::move(notice.unstorable);
    if (!notice.degraded.empty()) view.counters.last_error = notice.degraded;
    return std::exchange(view.counters.degraded, notice.degraded);
  });
  // Each retry words it anew: one line when it begins and one when it ends.
  if (before.empty() && !notice.degraded.empty())
    log_warning("{}: degraded: {}", who_, notice.degraded);
  if (!before.empty() && notice.degraded.empty()) log_info("{}: no longer degraded", who_);
}

void LinkState::silent(Silence silence) {
  const std::string told = view_.change([&](View& view) {
    view.silence = std::move(silence);
    view.counters.last_error = view.degraded();
    return view.counters.last_error;
  });
  log_warning("{}: {}", who_, told);
}

void LinkState::heard_again() {
  const auto silence =
      view_.change([](View& view) { return std::exchange(view.silence, std::nullopt); });
  if (silence) log_info("{}: the daemon, pid {}, answers again", who_, silence->process);
}

void LinkState::status_told(std::string json) {
  view_.change([&](View& view) { view.status = std::move(json); });
}

void LinkState::slots_ready(std::vector<MappedSlot> slots) {
  std::deque<GrantedSlot> old;
  view_.change([&](View& view) {
    view.slots_error.reset();
    view.slots.swap(slots);
    // A grant of a Slot that was replaced is void; the others hold, and are not said again.
    old.swap(view.granted);
    for (GrantedSlot& grant : old) {
      const bool is_kept = grant.slot < view.slots.size() &&
                           view.slots[grant.slot].generation == grant.mapped.generation;
      if (is_kept) view.granted.push_back(std::move(grant));
    }
  });
}

void LinkState::slots_failed(Error error) {
  log_warning("{}: no Slots: {}", who_, error.message());
  view_.change([&](View& view) {
    view.counters.last_error = error.message();
    view.slots_error = std::move(error);
    view.has_granted = true;
  });
}

void LinkState::slot_granted(std::uint32_t slot) {
  view_.change([&](View& view) {
    if (slot >= view.slots.size()) {
      view.counters.last_error = fmt::format("Slot {} was granted, but is not mapped", slot);
      return;
    }
    const auto is_same = [slot](const GrantedSlot& grant) { return grant.slot == slot; };
    if (std::none_of(view.granted.begin(), view.granted.end(), is_same))
      view.granted.push_back({slot, view.slots[slot]});
    view.has_granted = true;
  });
}

void LinkState::next_capture(Step step) {
  view_.change([&](View& view) { view.next_capture = step; });
}

void LinkState::level_reached(Step step, Level level) {
  view_.change([&](View& view) {
    for (std::size_t index = 1; index <= index_of(level); ++index) raise(view.reached[index], step);
    auto& counters = view.counters;
    std::optional<Step>* const newest[] = {&counters.captured, &counters.replicated,
                                           &counters.committed, &counters.durable};
    for (std::size_t index = 0; index < index_of(level); ++index) raise(*newest[index], step);
  });
}

void LinkState::step_dropped(Step step) {
  view_.change([&](View& view) { view.note_dropped(step); });
}

void LinkState::restore_filling(node::Filling filling) {
  view_.change([&](View& view) { view.filling = std::move(filling); });
}

void LinkState::restore_offered(node::SlotOffer offer) {
  view_.change([&](View& view) {
    if (offer.ask != view.ask) return;  // For a restore that was given up.
    view.filling.reset();
    MappedSlot mapped;
    if (offer.slot < view.slots.size()) mapped = view.slots[offer.slot];
    if (view.offers.size() >= offers_max) view.offers.pop_front();
    view.offers.push_back({std::move(offer), std::move(mapped)});
  });
}

void LinkState::begun(node::Begun begun) {
  std::deque<GrantedSlot> old;
  view_.change([&](View& view) {
    old.swap(view.granted);  // The restore may have taken them; what is free is granted again.
    if (begun.ask != view.ask) return;  // The answer to what was given up.
    if (!begun.error) {
      // Steps of another timeline say nothing of this one's.
      if (view.identity.timeline != begun.timeline) {
        std::fill(std::begin(view.reached), std::end(view.reached), std::nullopt);
        view.dropped.clear();
        view.newest_taken.reset();
        view.newest_skipped.reset();
        view.restored.reset();
        if (begun.restored) view.restored = begun.restored->step;
        view.lost_through.reset();
        view.next_capture = Step{};
        LinkCounters& newest = view.counters;
        newest.captured = newest.replicated = newest.committed = newest.durable = std::nullopt;
      }
      view.identity.timeline = begun.timeline;
    }
    view.begun = std::move(begun);
  });
}

void LinkState::closed(Status status) {
  view_.change([&](View& view) { view.closed = std::move(status); });
}

void LinkState::forget_slots() {
  View old;  // What it takes over is let go outside of the lock.
  view_.change([&](View& view) {
    old.slots.swap(view.slots);
    old.granted.swap(view.granted);
    old.taken.swap(view.taken);
    old.offers.swap(view.offers);
  });
}

bool LinkState::forget_idle_slots() {
  View old;
  return view_.change([&](View& view) {
    old.slots.swap(view.slots);
    old.granted.swap(view.granted);
    old.offers.swap(view.offers);
    return view.taken.empty();
  });
}

// --- The trainer's threads ---

Status LinkState::wait_attached(Deadline deadline) const {
  return wait_for(deadline, "attach",
                  [](const View& view) { return view.phase == Phase::attached; });
}

void LinkState::ask_layout(std::uint64_t slot_bytes) {
  view_.change([&](View& view) {
    view.slot_bytes = slot_bytes;
    view.slots_error.reset();
  });
}

namespace {

Deadline told_next() {
  return std::chrono::steady_clock::now() + RestoreTeller::interval;
}

template <class View>
bool are_slots_big_enough(const View& view) {
  return std::any_of(view.slots.begin(), view.slots.end(),
                     [&](const MappedSlot& slot) { return slot.bytes.size() >= view.slot_bytes; });
}

}  // namespace

// Once for a job, but on a slow machine for seconds per GiB.
template <class IsOver>
void LinkState::tell_of_slots(Deadline deadline, IsOver is_over) const {
  if (!tells_after_) return;
  const Deadline told_at = std::chrono::steady_clock::now() + *tells_after_;
  if (told_at >= deadline) return;
  const bool has_ended = view_.wait_until(
      told_at, [&](const View& view) { return is_over(view) || view.phase == Phase::ended; });
  if (has_ended) return;
  const std::uint64_t bytes = view_.read([](const View& view) { return view.slot_bytes; });
  log_info("{}: preparing memory, Slots of {} each: this is done once, later saves are quick", who_,
           arena::human_bytes(bytes));
}

template <class IsOver>
Status LinkState::tell_until(IsOver is_over, Deadline deadline, const RestoreWatch& watch) const {
  for (Deadline next = told_next(); watch && next < deadline; next = told_next()) {
    const bool has_ended = view_.wait_until(
        next, [&](const View& view) { return is_over(view) || view.phase == Phase::ended; });
    if (has_ended) break;
    if (!watch(restore_progress()))
      return fail(Errc::unavailable, who_ + ": restore: who watches it has given it up");
  }
  return {};
}

template <class IsNeedless>
Status LinkState::wait_slots_unless(IsNeedless is_needless, Deadline deadline,
                                    const RestoreWatch& watch) const {
  const auto is_over = [&](const View& view) {
    return is_needless(view) || view.slots_error.has_value() || are_slots_big_enough(view);
  };
  tell_of_slots(deadline, is_over);
  const std::uint64_t bytes = view_.read([](const View& view) { return view.slot_bytes; });
  const std::string what = fmt::format("make Slots of {}", arena::human_bytes(bytes));
  CKPT_CHECK(tell_until(is_over, deadline, watch));
  CKPT_CHECK(wait_for(deadline, what, is_over, "not done yet"));
  return view_.read([&](const View& view) -> Status {
    if (view.slots_error && !is_needless(view)) return fail(Error(*view.slots_error));
    return {};
  });
}

Status LinkState::wait_slots(Deadline deadline) const {
  return wait_slots_unless([](const View&) { return false; }, deadline);
}

Status LinkState::wait_slots_or_begun(Deadline deadline, const RestoreWatch& watch) const {
  return wait_slots_unless([](const View& view) { return view.begun.has_value(); }, deadline,
                           watch);
}

bool LinkState::is_ready() const {
  return view_.read(
      [](const View& view) { return view.phase == Phase::attached && are_slots_big_enough(view); });
}

Link::Identity LinkState::identity() const {
  return view_.read([](const View& view) { return view.identity; });
}

Step LinkState::next_capture() const {
  return view_.read([](const View& view) { return view.next_capture; });
}

std::optional<Granted> LinkState::take_slot(Step step) {
  return view_.change([step](View& view) -> std::optional<Granted> {
    if (view.phase != Phase::attached) return std::nullopt;
    const auto found = std::find_if(
        view.granted.begin(), view.granted.end(),
        [&](const GrantedSlot& grant) { return grant.mapped.bytes.size() >= view.slot_bytes; });
    if (found == view.granted.end()) return std::nullopt;
    Granted granted;
    granted.slot = found->slot;
    granted.generation = found->mapped.generation;
    granted.bytes = found->mapped.bytes;
    view.taken.push_back(std::move(*found));
    view.granted.erase(found);
    raise(view.newest_taken, step);
    view.is_last_skip_open = false;
    return granted;
  });
}

void LinkState::skipped(Step step) {
  view_.change([step](View& view) {
    raise(view.newest_skipped, step);
    if (view.newest_taken == step) view.note_dropped(step);  // Its capture failed.
  });
}

bool LinkState::add_skip(Step step) {
  return view_.change([step](View& view) {
    const bool is_new = !std::exchange(view.is_last_skip_open, true);
    if (is_new) view.skips.push_back(step);
    view.skips.back() = std::max(view.skips.back(), step);
    return is_new;
  });
}

Step LinkState::next_skip() {
  return view_.change([](View& view) {
    CKPT_ASSERT(!view.skips.empty());
    const Step step = view.skips.front();
    view.skips.pop_front();
    if (view.skips.empty()) view.is_last_skip_open = false;
    return step;
  });
}

MappedSlot LinkState::give_back(const Granted& granted) {
  return view_.change([&](View& view) -> MappedSlot {
    const auto found =
        std::find_if(view.taken.begin(), view.taken.end(), [&](const GrantedSlot& taken) {
          return taken.slot == granted.slot && taken.mapped.generation == granted.generation;
        });
    if (found == view.taken.end()) return {};
    MappedSlot mapped = std::move(found->mapped);
    view.taken.erase(found);
    return mapped;
  });
}

std::uint64_t LinkState::ask_begin() {
  std::deque<OfferedSlot> old;
  return view_.change([&](View& view) {
    view.begun.reset();
    view.filling.reset();
    old.swap(view.offers);
    return ++view.ask;
  });
}

std::optional<std::uint64_t> LinkState::ask_fresh() {
  return view_.change([](View& view) -> std::optional<std::uint64_t> {
    if (view.begun && !view.begun->error) return std::nullopt;
    view.begun.reset();
    return ++view.ask;
  });
}

bool LinkState::has_begun() const {
  return view_.read([](const View& view) { return view.begun && !view.begun->error; });
}

Status LinkState::wait_fresh(Deadline deadline) const {
  CKPT_CHECK(wait_for(deadline, "start with the other ranks", [](const View& view) {
    return view.begun && (view.begun->error || view.has_fitting_grant());
  }));
  CKPT_TRY(const auto answer, begun_answer());
  if (answer.error) return fail(Error(*answer.error));
  return {};
}

RestoreProgress LinkState::restore_progress() const {
  return view_.read([](const View& view) {
    RestoreProgress progress;
    progress.waiting = view.phase == Phase::away ? "the daemon is away" : view.waiting;
    if (!view.filling) return progress;
    progress.phase = RestoreProgress::Phase::filling;
    progress.bytes = view.filling->bytes;
    progress.bytes_total = view.filling->bytes_total;
    progress.source_name = view.filling->source_name;
    return progress;
  });
}

Result<std::optional<LinkState::OfferedSlot>> LinkState::wait_offer(Deadline deadline,
                                                                    const RestoreWatch& watch) {
  const auto is_over = [](const View& view) {
    return view.begun.has_value() || !view.offers.empty();
  };
  CKPT_CHECK(tell_until(is_over, deadline, watch));
  CKPT_CHECK(wait_for(deadline, "restore", is_over));
  return view_.change([](View& view) -> Result<std::optional<OfferedSlot>> {
    if (view.begun || view.offers.empty()) return std::optional<OfferedSlot>();
    std::optional<OfferedSlot> next(std::move(view.offers.front()));
    view.offers.pop_front();
    return next;
  });
}

Result<node::Begun> LinkState::begun_answer() const {
  return view_.read([&](const View& view) -> Result<node::Begun> {
    if (view.begun) return *view.begun;
    return fail(Errc::unavailable, who_ + ": the session has not begun");
  });
}

Status LinkState::wait_level(Step step, Level level, Deadline deadline) const {
  const auto has_reached = [&](const View& view) {
    const auto& newest = view.reached[index_of(level)];
    return newest && *newest >= step;
  };
  const auto is_dropped = [&](const View& view) {
    return std::find(view.dropped.begin(), view.dropped.end(), step) != view.dropped.end();
  };
  const auto is_hopeless = [&](const View& view) {
    return level == Level::durable && !view.unstorable.empty();
  };
  const std::string what = fmt::format("wait until step {} is {}", number(step), to_string(level));
  CKPT_CHECK(wait_for(deadline, what, [&](const View& view) {
    return has_reached(view) || is_dropped(view) || view.is_lost(step) || view.is_skipped(step) ||
           is_hopeless(view);
  }));
  return view_.read([&](const View& view) -> Status {
    if (has_reached(view)) return {};
    if (is_hopeless(view) && !is_dropped(view) && !view.is_skipped(step))
      return fail(Errc::exhausted, fmt::format("{}: {}: {}", who_, what, view.unstorable));
    if (view.is_lost(step) && !is_dropped(view))
      return fail(Errc::not_found,
                  fmt::format("{}: the daemon that held step {} died, and the next one does not "
                              "know the step to be {}",
                              who_, number(step), to_string(level)));
    const char* why = is_dropped(view) ? "was given up by all ranks" : "was skipped by this rank";
    return fail(Errc::not_found, fmt::format("{}: step {} {}", who_, number(step), why));
  });
}

void LinkState::ask_close() {
  view_.change([](View& view) { view.closed.reset(); });
}

Status LinkState::ask_status() {
  return view_.change([&](View& view) -> Status {
    if (view.phase == Phase::ended) return end_of(view);
    if (view.phase != Phase::attached) {
      const std::string why = view.end ? ": " + view.end->text() : std::string();
      return fail(Errc::unavailable, fmt::format("{}: status: the daemon is away{}", who_, why));
    }
    view.status.reset();
    return {};
  });
}

Result<std::string> LinkState::wait_status(Deadline deadline) const {
  CKPT_CHECK(wait_for(deadline, "status", [](const View& view) {
    return view.status.has_value() || view.phase == Phase::away;
  }));
  return view_.read([&](const View& view) -> Result<std::string> {
    if (view.status) return *view.status;
    return fail(Errc::unavailable, fmt::format("{}: status: the daemon ended meanwhile", who_));
  });
}

Status LinkState::wait_closed(Deadline deadline) const {
  CKPT_CHECK(wait_for(deadline, "close", [](const View& view) { return view.closed.has_value(); }));
  return view_.read([](const View& view) { return *view.closed; });
}

std::optional<Step> LinkState::newest_lost() const {
  return view_.read([](const View& view) -> std::optional<Step> {
    const auto& durable = view.reached[index_of(Level::durable)];
    const bool is_made_up = !view.lost_through || (durable && *durable >= *view.lost_through);
    return is_made_up ? std::nullopt : view.lost_through;
  });
}

LinkCounters LinkState::counters() const {
  return view_.read([](const View& view) {
    LinkCounters counters = view.counters;
    counters.degraded = view.degraded();
    return counters;
  });
}

}  // namespace ckpt::client
