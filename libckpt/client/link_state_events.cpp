// Changes of the view by the engine's messages, and by the link's own. On ckpt-snap.
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/log.hpp"
#include "base/overloaded.hpp"
#include "client/link_state.hpp"

namespace ckpt::client {

namespace {

// The part of `now` to log. News that stays as it is, as that of a taken place, stands before what
// begins beside it.
std::string_view begun_trouble(std::string_view before, std::string_view now) {
  constexpr std::string_view between = "; ";
  if (before.empty()) return now;
  if (!now.starts_with(before) || !now.substr(before.size()).starts_with(between)) return {};
  return now.substr(before.size() + between.size());
}

}  // namespace

void LinkState::connected(int process) {
  change([&](LinkView& view) { view.process = process; });
}

void LinkState::attached(const format::RunId& run) {
  change([&](LinkView& view) {
    view.phase = Phase::attached;
    view.end.reset();
    view.identity.run = run;
  });
}

void LinkState::lost(const std::string& reason) {
  LinkView::Released released;
  change([&](LinkView& view) {
    if (!view.is_over()) released = view.lose(reason);
  });
}

void LinkState::refused(Error error) {
  change([&](LinkView& view) {
    if (view.is_over()) return;
    view.phase = Phase::ended;
    view.counters.last_error = error.message();
    view.end = std::move(error);
  });
}

void LinkState::fenced(std::string reason) {
  log_error("{}: fenced: {}", who_, reason);
  refused(Error(Errc::unavailable, fmt::format("{} was taken over: {}", who_, reason)));
}

void LinkState::noticed(control::Notice notice) {
  const auto [before, differed] = change([&](LinkView& view) {
    view.waiting = std::move(notice.waiting);
    if (view.has_begun() && !notice.degraded.empty()) view.counters.last_error = notice.degraded;
    return std::pair(std::exchange(view.counters.degraded, notice.degraded),
                     std::exchange(view.differ, notice.differ));
  });
  // Each retry changes the text, so only the beginning and the end are logged.
  if (const std::string_view trouble = begun_trouble(before, notice.degraded); !trouble.empty())
    log_warning("{}: degraded: {}", who_, trouble);
  if (!before.empty() && notice.degraded.empty()) log_info("{}: no longer degraded", who_);
  if (!notice.differ.empty() && notice.differ != differed)
    log_warning("{}: ranks declare copies that are not the same: {}", who_, notice.differ);
}

void LinkState::silent(Silence silence) {
  const std::string text = change([&](LinkView& view) -> std::string {
    if (view.is_over()) return {};  // A fenced trainer gets no answers.
    view.silence = std::move(silence);
    view.counters.last_error = view.degraded();
    return view.counters.last_error;
  });
  if (!text.empty()) log_warning("{}: {}", who_, text);
}

void LinkState::heard_again() {
  const auto silence =
      change([](LinkView& view) { return std::exchange(view.silence, std::nullopt); });
  if (silence) log_info("{}: the daemon, pid {}, answers again", who_, silence->process);
}

void LinkState::notify(control::Event event) {
  std::visit(Overloaded{
                 [this](control::SlotsFailed& it) { slots_failed(std::move(it.result).error()); },
                 [this](control::Granted& it) { slot_granted(it.slot); },
                 [this](control::NextCapture& it) { next_capture(it.step); },
                 [this](control::LevelReached& it) { level_reached(it.step, it.level); },
                 [this](control::StepDropped& it) { step_dropped(it.step); },
                 [this](control::Filling& it) { restore_filling(std::move(it)); },
                 [this](control::Offer& it) { restore_offered(std::move(it)); },
                 [this](control::Begun& it) { begun(std::move(it)); },
                 [this](control::Notice& it) { noticed(std::move(it)); },
                 [this](control::Answer& it) {
                   change([&](LinkView& view) { view.status = std::move(it.json); });
                 },
                 [this](control::Closed& it) { closed(std::move(it.result)); },
                 [this](control::Fenced& it) { fenced(std::move(it.reason)); },
             },
             event);
}

void LinkState::slots_ready(std::vector<MappedSlot> slots) {
  SessionSlots::Cleared old;
  change([&](LinkView& view) {
    view.slots_error.reset();
    old = view.slots.replace(std::move(slots));
  });
}

void LinkState::slots_failed(Error error) {
  log_warning("{}: no Slots: {}", who_, error.message());
  change([&](LinkView& view) {
    view.counters.last_error = error.message();
    view.slots_error = std::move(error);
    view.levels.engine_spoke();
  });
}

void LinkState::slot_granted(std::uint32_t slot) {
  change([&](LinkView& view) {
    if (view.slots.grant(slot)) return view.levels.engine_spoke();
    view.counters.last_error = fmt::format("Slot {} was granted, but is not mapped", slot);
  });
}

void LinkState::next_capture(Step step) {
  change([&](LinkView& view) { view.next_capture = step; });
}

void LinkState::level_reached(Step step, Level level) {
  change([&](LinkView& view) { view.reach(step, level); });
}

void LinkState::step_dropped(Step step) {
  change([&](LinkView& view) { view.levels.dropped(step); });
}

void LinkState::restore_filling(control::Filling filling) {
  change([&](LinkView& view) { view.filling = std::move(filling); });
}

void LinkState::restore_offered(control::Offer offer) {
  change([&](LinkView& view) { view.offer(std::move(offer)); });
}

void LinkState::begun(control::Begun begun) {
  LinkView::Released released;
  change([&](LinkView& view) { released = view.begin(std::move(begun)); });
}

void LinkState::closed(Status status) {
  change([&](LinkView& view) { view.closed = std::move(status); });
}

void LinkState::forget_slots() {
  LinkView::Released released;
  change([&](LinkView& view) {
    released.slots = view.slots.clear_all();
    released.offers.swap(view.offers);
  });
}

bool LinkState::forget_idle_slots() {
  LinkView::Released released;
  return change([&](LinkView& view) {
    released.slots = view.slots.clear();
    released.offers.swap(view.offers);
    return !view.slots.has_taken();
  });
}

}  // namespace ckpt::client
