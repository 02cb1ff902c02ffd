#include "client/link_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::client {

namespace {

// An engine sends one at a time; more come only if a restore is repeated before we look.
constexpr std::size_t offers_max = 16;

}  // namespace

LinkView::Released LinkView::lose(const std::string& reason) {
  CKPT_ASSERT(!is_over());
  if (phase == Phase::attached) ++counters.daemon_restarts;
  was_attached = was_attached || phase == Phase::attached;
  phase = Phase::away;
  end = Error(Errc::unavailable, reason);
  counters.last_error = reason;
  Released released;
  released.slots = slots.clear();
  released.offers.swap(offers);
  filling.reset();
  slots_error.reset();
  next_capture = Step{};
  // The next engine reports its own delays, if it has any.
  waiting.clear();
  silence.reset();
  counters.degraded.clear();
  levels.engine_lost();
  return released;
}

void LinkView::reach(Step step, Level level) {
  levels.reached(step, level);
  const std::pair<Level, std::optional<Step>&> newest[] = {{Level::captured, counters.captured},
                                                           {Level::replicated, counters.replicated},
                                                           {Level::committed, counters.committed},
                                                           {Level::durable, counters.durable}};
  for (const auto& [each, counter] : newest)
    if (each <= level) counter = std::max(counter, std::optional(step));
}

LinkView::Released LinkView::begin(control::Begun answer) {
  Released released;
  released.slots = slots.void_grants();
  if (answer.ask != ask) return released;  // It answers a request that was given up.
  if (answer.result && identity.timeline != answer.timeline) {
    // Levels of another timeline do not count in this one.
    std::optional<Step> restored;
    if (answer.restored) restored = answer.restored->step;
    levels.restart(restored);
    next_capture = Step{};
    counters.captured = counters.replicated = counters.committed = counters.durable = std::nullopt;
  }
  if (answer.result) identity.timeline = answer.timeline;
  begun = std::move(answer);
  return released;
}

void LinkView::offer(control::Offer offered) {
  if (offered.ask != ask) return;  // For a restore that was given up.
  filling.reset();
  MappedSlot mapped = slots.mapped(offered.slot);
  if (offers.size() >= offers_max) offers.pop_front();
  offers.push_back({std::move(offered), std::move(mapped)});
}

std::string LinkView::degraded() const {
  if (!silence) return counters.degraded;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::steady_clock::now() - silence->since);
  std::string text = fmt::format(
      "the daemon, pid {}, has not answered for {} s: it is stopped or hangs; its log is {}",
      silence->process, seconds.count(), silence->log_path);
  if (!counters.degraded.empty()) text += "; " + counters.degraded;
  return text;
}

RestoreProgress LinkView::restore_progress() const {
  RestoreProgress progress;
  progress.waiting = phase == Phase::away ? "the daemon is away" : waiting;
  if (!filling) return progress;
  progress.phase = RestoreProgress::Phase::filling;
  progress.bytes = filling->bytes;
  progress.bytes_total = filling->bytes_total;
  progress.source_name = filling->source_name;
  return progress;
}

std::string LinkView::levels_text() const {
  const std::pair<Level, std::optional<Step>> newest[] = {{Level::captured, counters.captured},
                                                          {Level::committed, counters.committed},
                                                          {Level::durable, counters.durable}};
  std::string text;
  for (const auto& [level, step] : newest) {
    const std::string which = step ? fmt::format("step {}", number(*step)) : "no step";
    text += fmt::format("{}{} is {}", text.empty() ? "" : ", ", which, to_string(level));
  }
  return text;
}

std::string LinkView::delays() const {
  std::string text;
  // A daemon that was never attached may be there, and refuse.
  const char* const what = was_attached ? "the daemon is away" : "the last try failed";
  if (phase == Phase::away) text += fmt::format("; {}: {}", what, end->text());
  if (!waiting.empty()) text += "; it waits: " + waiting;
  if (const std::string trouble = degraded(); !trouble.empty()) text += "; " + trouble;
  return text;
}

bool LinkView::is_lost(Step step) const {
  return phase == Phase::attached && levels.is_lost(step);
}

// Only a bug of ours can break these: the engine's messages are checked where they arrive.
void LinkView::check_invariants() const {
  slots.check_invariants();
  levels.check_invariants();
  skips.check_invariants();
  const bool has_end = end.has_value();
  CKPT_ASSERT(has_end == (phase == Phase::away || phase == Phase::ended));
  if (phase == Phase::away) CKPT_ASSERT(slots.is_empty());
  if (begun) CKPT_ASSERT(begun->ask == ask);
  CKPT_ASSERT(offers.size() <= offers_max);
}

}  // namespace ckpt::client
