#include "client/link_state.hpp"

#include <fmt/format.h>

#include <utility>

#include "arena/arena_limits.hpp"
#include "base/assert.hpp"
#include "base/log.hpp"
#include "client/restore_teller.hpp"
#include "os/process.hpp"

namespace ckpt::client {

Unexpected LinkState::end_of(const LinkView& view) const {
  CKPT_ASSERT(view.end.has_value());
  return fail(Error(*view.end));
}

std::string LinkState::stopped_daemon() const {
  const int process = view_.read([](const LinkView& view) { return view.process; });
  const auto is_stopped = os::is_stopped(process);
  if (!is_stopped || !*is_stopped) return {};
  return "; the daemon is " + os::describe_process(process);
}

template <class Holds>
bool LinkState::wait_until(Deadline deadline, Holds holds, const Meanwhile& work) const {
  const auto is_over = [&](const LinkView& view) { return holds(view) || view.is_over(); };
  bool has_work = work != nullptr;
  while (has_work) {
    const bool is_woken = view_.wait_until(
        deadline, [&](const LinkView& view) { return is_over(view) || view.filling.has_value(); });
    if (!is_woken || view_.read(is_over)) return is_woken;
    has_work = work() && std::chrono::steady_clock::now() < deadline;
  }
  return view_.wait_until(deadline, is_over);
}

template <class Holds>
Status LinkState::wait_for(Deadline deadline, std::string_view what, Holds holds,
                           std::string_view late, const Meanwhile& work) const {
  const bool is_over = wait_until(deadline, holds, work);
  const std::string stopped = is_over ? std::string() : stopped_daemon();
  return view_.read([&](const LinkView& view) -> Status {
    if (holds(view)) return {};
    if (view.is_over()) return end_of(view);
    return fail(Errc::unavailable,
                fmt::format("{}: {}: {}{}{}", who_, what, late, view.delays(), stopped));
  });
}

Status LinkState::wait_attached(Deadline deadline, const std::string& directory) const {
  std::string late = "the deadline passed";
  if (!directory.empty())
    late += "; the daemon reads " + directory + " first, which may not answer: see its log";
  return wait_for(
      deadline, "attach", [](const LinkView& view) { return view.phase == Phase::attached; }, late);
}

void LinkState::ask_layout(std::uint64_t slot_bytes) {
  change([&](LinkView& view) {
    view.slots.ask(slot_bytes);
    view.slots_error.reset();
  });
}

// True: it is worth a line in the log.
template <class IsOver>
bool LinkState::lasts_long(Deadline deadline, IsOver is_over, const Meanwhile& work) const {
  if (!log_after_) return false;
  const Deadline log_at = std::chrono::steady_clock::now() + *log_after_;
  return log_at < deadline && !wait_until(log_at, is_over, work);
}

template <class IsOver>
Status LinkState::report_until(IsOver is_over, Deadline deadline, const RestoreWatch& watch,
                               const Meanwhile& work) const {
  const auto next_report = [] {
    return std::chrono::steady_clock::now() + RestoreTeller::interval;
  };
  for (Deadline next = next_report(); watch && next < deadline; next = next_report()) {
    if (wait_until(next, is_over, work)) break;
    if (!watch(view_.read([](const LinkView& view) { return view.restore_progress(); })))
      return fail(Errc::unavailable, who_ + ": restore: its watch has given it up");
  }
  return {};
}

template <class IsNeedless>
Status LinkState::wait_slots_unless(IsNeedless is_needless, Deadline deadline,
                                    const RestoreWatch& watch, const Meanwhile& work) const {
  const auto is_over = [&](const LinkView& view) {
    return is_needless(view) || view.slots_error.has_value() || view.slots.are_big_enough();
  };
  const std::uint64_t bytes =
      view_.read([](const LinkView& view) { return view.slots.asked_bytes(); });
  const std::string size = arena::human_bytes(bytes);
  // Once per job, but seconds per GiB on a slow machine.
  if (lasts_long(deadline, is_over, work))
    log_info("{}: preparing memory, Slots of {} each: this is done once, later saves are quick",
             who_, size);
  const std::string what = "make Slots of " + size;
  CKPT_CHECK(report_until(is_over, deadline, watch, work));
  CKPT_CHECK(wait_for(deadline, what, is_over, "not done yet", work));
  return view_.read([&](const LinkView& view) -> Status {
    if (view.slots_error && !is_needless(view)) return fail(Error(*view.slots_error));
    return {};
  });
}

Status LinkState::wait_slots(Deadline deadline) const {
  return wait_slots_unless([](const LinkView&) { return false; }, deadline);
}

Status LinkState::wait_slots_for_restore(Deadline deadline, const RestoreWatch& watch,
                                         const Meanwhile& work) const {
  return wait_slots_unless(
      [](const LinkView& view) { return view.needs_no_more_slots_to_restore(); }, deadline, watch,
      work);
}

bool LinkState::is_ready() const {
  return view_.read([](const LinkView& view) {
    return view.phase == Phase::attached && view.slots.are_big_enough();
  });
}

SessionIdentity LinkState::identity() const {
  return view_.read([](const LinkView& view) { return view.identity; });
}

Step LinkState::next_capture() const {
  return view_.read([](const LinkView& view) { return view.next_capture; });
}

std::optional<TakenSlot> LinkState::take_slot(Step step) {
  return change([step](LinkView& view) -> std::optional<TakenSlot> {
    if (view.phase != Phase::attached) return std::nullopt;
    auto taken = view.slots.take();
    if (!taken) return taken;
    view.levels.taken(step);
    view.skips.capture_began();
    return taken;
  });
}

void LinkState::skipped(Step step) {
  change([step](LinkView& view) { view.levels.skipped(step); });
}

bool LinkState::add_skip(Step step) {
  return change([step](LinkView& view) { return view.skips.add(step); });
}

Step LinkState::next_skip() {
  return change([](LinkView& view) { return view.skips.next(); });
}

MappedSlot LinkState::give_back(const TakenSlot& taken) {
  return change([&](LinkView& view) { return view.slots.give_back(taken); });
}

std::uint64_t LinkState::ask_begin() {
  std::deque<OfferedSlot> old;
  return change([&](LinkView& view) {
    view.begun.reset();
    view.filling.reset();
    old.swap(view.offers);
    return ++view.ask;
  });
}

std::optional<std::uint64_t> LinkState::ask_fresh(bool is_anew) {
  return change([&](LinkView& view) -> std::optional<std::uint64_t> {
    if (!is_anew && view.begun && view.begun->result) return std::nullopt;
    view.begun.reset();
    return ++view.ask;
  });
}

Status LinkState::wait_fresh(Deadline deadline) const {
  CKPT_CHECK(wait_for(deadline, "start with the other ranks", [](const LinkView& view) {
    return view.begun && (!view.begun->result || view.slots.has_fitting_grant());
  }));
  CKPT_TRY(const auto answer, begun_answer());
  if (!answer.result) return fail(Error(answer.result.error()));
  return {};
}

Result<std::optional<OfferedSlot>> LinkState::wait_offer(Deadline deadline,
                                                         const RestoreWatch& watch,
                                                         const Meanwhile& work) {
  const auto is_over = [](const LinkView& view) {
    return view.begun.has_value() || !view.offers.empty();
  };
  CKPT_CHECK(report_until(is_over, deadline, watch, work));
  CKPT_CHECK(wait_for(deadline, "restore", is_over, "the deadline passed", work));
  return change([](LinkView& view) -> Result<std::optional<OfferedSlot>> {
    if (view.begun || view.offers.empty()) return std::optional<OfferedSlot>();
    std::optional<OfferedSlot> next(std::move(view.offers.front()));
    view.offers.pop_front();
    return next;
  });
}

Result<control::Begun> LinkState::begun_answer() const {
  return view_.read([&](const LinkView& view) -> Result<control::Begun> {
    if (view.begun) return *view.begun;
    return fail(Errc::unavailable, who_ + ": the session has not begun");
  });
}

Status LinkState::wait_level(Step step, Level level, Deadline deadline) const {
  const auto has_reached = [&](const auto& view) { return view.levels.has_reached(step, level); };
  const auto is_dropped = [&](const LinkView& view) { return view.levels.is_dropped(step); };
  const std::string what = fmt::format("wait until step {} is {}", number(step), to_string(level));
  CKPT_CHECK(wait_for(deadline, what, [&](const LinkView& view) {
    return has_reached(view) || is_dropped(view) || view.is_lost(step) ||
           view.levels.has_no_capture(step);
  }));
  return view_.read([&](const LinkView& view) -> Status {
    if (has_reached(view)) return {};
    if (view.is_over() && !is_dropped(view)) return end_of(view);
    if (view.is_lost(step) && !is_dropped(view))
      return fail(Errc::not_found,
                  fmt::format("{}: the daemon that held step {} died, and the next one does not "
                              "know the step to be {}",
                              who_, number(step), to_string(level)));
    const char* why = "has no save on this rank that could bring it";
    if (view.levels.is_passed(step)) why = "has no save on this rank";
    if (is_dropped(view)) why = "was given up";
    return fail(Errc::not_found, fmt::format("{}: step {} {}", who_, number(step), why));
  });
}

namespace {

// For people: " for 58 s at most". Empty for a deadline that is passed, or as good as none.
std::string longest_wait(Deadline deadline) {
  constexpr std::chrono::hours known_max(24);
  const auto left = deadline - std::chrono::steady_clock::now();
  if (left <= std::chrono::seconds(0) || left > known_max) return {};
  return fmt::format(" for {} s at most", std::chrono::ceil<std::chrono::seconds>(left).count());
}

}  // namespace

void LinkState::ask_close() {
  change([](LinkView& view) { view.closed.reset(); });
}

Status LinkState::ask_status() {
  return change([&](LinkView& view) -> Status {
    if (view.is_over()) return end_of(view);
    const std::string why = view.end ? ": " + view.end->text() : std::string();
    if (view.phase != Phase::attached)
      return fail(Errc::unavailable, fmt::format("{}: status: the daemon is away{}", who_, why));
    view.status.reset();
    return {};
  });
}

Result<std::string> LinkState::wait_status(Deadline deadline) const {
  CKPT_CHECK(wait_for(deadline, "status", [](const LinkView& view) {
    return view.status.has_value() || view.phase == Phase::away;
  }));
  return view_.read([&](const LinkView& view) -> Result<std::string> {
    if (view.status) return *view.status;
    return fail(Errc::unavailable, who_ + ": status: the daemon ended meanwhile");
  });
}

Status LinkState::wait_closed(Deadline deadline) const {
  const auto is_closed = [](const LinkView& view) { return view.closed.has_value(); };
  // A full disk, or a bucket that is away, may take minutes, in which a program seems to hang.
  // Where such trouble is known, nothing suggests that waiting helps soon.
  const bool is_in_trouble = log_after_ && view_.read([](const LinkView& view) {
    return !view.closed && !view.degraded().empty();
  });
  if (is_in_trouble || lasts_long(deadline, is_closed))
    log(is_in_trouble ? LogLevel::warning : LogLevel::info, "{}: close waits{}: {}", who_,
        longest_wait(deadline),
        view_.read([](const LinkView& view) { return view.levels_text() + view.delays(); }));
  const Status over = wait_for(deadline, "close", is_closed);
  return view_.read([&](const LinkView& view) -> Status {
    if (over) return *view.closed;
    return fail(over.error().code(), over.error().text() + ": " + view.levels_text());
  });
}

std::optional<Step> LinkState::newest_lost() const {
  return view_.read([](const LinkView& view) { return view.levels.newest_lost(); });
}

LinkCounters LinkState::counters() const {
  return view_.read([](const LinkView& view) {
    LinkCounters counters = view.counters;
    counters.degraded = view.degraded();
    counters.saved = view.levels.newest(Level::captured);
    return counters;
  });
}

}  // namespace ckpt::client
