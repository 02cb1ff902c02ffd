#include "client/session_link.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/kill_point.hpp"
#include "client/attach_message.hpp"
#include "format/start.hpp"

namespace ckpt::client {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr auto grant_wait_max = std::chrono::seconds(1);

// A failure of our own device: another offer would fail in the same way. A step that does not fit
// our tensors is another matter: it ends the restore of all ranks, with the reason.
bool is_our_own_failure(const Status& copied) {
  return !copied && copied.error().code() != Errc::corruption &&
         copied.error().code() != Errc::invalid_argument;
}

// The daemon says at its own deadline what keeps it from closing. Ours leaves time for the answer.
constexpr milliseconds close_answer_time{1000};

// After this long, a person begins to wonder.
constexpr std::chrono::seconds waits_logged_after{3};

}  // namespace

std::shared_ptr<LinkState> make_link_state(const Options& options) {
  std::optional<milliseconds> log_after;
  if (options.rank == 0) log_after = waits_logged_after;
  return std::make_shared<LinkState>(name_for_errors(options), log_after);
}

SessionLink::SessionLink(std::shared_ptr<LinkState> state, std::unique_ptr<EngineSide> side)
    : state_(std::move(state)), side_(std::move(side)), process_(::getpid()) {}

SessionLink::~SessionLink() {
  // In a forked child the thread does not exist, and its locks may stay locked. The child leaves
  // all of it untouched until it ends.
  if (!is_forked()) return;
  (void)side_.release();
  (void)new std::shared_ptr<LinkState>(std::move(state_));
}

bool SessionLink::is_forked() const {
  return ::getpid() != process_;
}

Status SessionLink::check_process() const {
  if (!is_forked()) return {};
  return fail(Errc::invalid_argument,
              fmt::format("pid {} was forked from the trainer, pid {}, which alone may use this "
                          "Checkpointer",
                          ::getpid(), process_));
}

void SessionLink::keep_mapped_by(std::shared_ptr<device::MemoryPins> pins) {
  if (!is_forked()) side_->keep_mapped_by(std::move(pins));
}

Status SessionLink::set_layout(const format::Layout& layout, Deadline deadline) {
  CKPT_CHECK(check_process());
  state_->ask_layout(layout.slot_bytes);
  side_->post(control::SetLayout{layout});
  return state_->wait_slots(deadline);
}

Status SessionLink::slots_status() const {
  CKPT_CHECK(check_process());
  return state_->wait_slots(steady_clock::now());
}

Status SessionLink::start_fresh(Deadline deadline, Fresh how) {
  CKPT_CHECK(check_process());
  const bool is_anew = how == Fresh::anew;
  if (const auto ask = state_->ask_fresh(is_anew))
    side_->post(control::StartFresh{*ask, how == Fresh::implied, is_anew});
  return state_->wait_fresh(deadline);
}

Status SessionLink::wait_granted(Deadline deadline) {
  CKPT_CHECK(check_process());
  return state_->wait_fresh(deadline);
}

bool SessionLink::is_ready() const {
  return !is_forked() && state_->is_ready();
}

SessionIdentity SessionLink::identity() const {
  return is_forked() ? SessionIdentity{} : state_->identity();
}

Step SessionLink::next_capture() const {
  return is_forked() ? Step{UINT64_MAX} : state_->next_capture();
}

std::optional<TakenSlot> SessionLink::take_slot(Step step) {
  if (is_forked()) return std::nullopt;
  auto taken = state_->take_slot(step);
  if (!taken) return taken;
  CKPT_POINT("slot.acquired");
  side_->post(control::Begin{taken->slot, taken->generation, step});
  return taken;
}

void SessionLink::arrived(const TakenSlot& taken, std::uint64_t bytes) {
  if (!is_forked()) side_->post(control::Arrived{taken.slot, taken.generation, bytes});
}

void SessionLink::filled(const TakenSlot& taken, control::Filled filled) {
  if (is_forked()) return;
  CKPT_POINT("publish.before");
  filled.slot = taken.slot;
  filled.generation = taken.generation;
  side_->post(std::move(filled));
  side_->let_go(state_->give_back(taken));
  CKPT_POINT("publish.after");
}

void SessionLink::abandon(const TakenSlot& taken) {
  if (is_forked()) return;
  side_->post(control::Abandon{taken.slot, taken.generation});
  side_->let_go(state_->give_back(taken));
}

void SessionLink::skipped(Step step) {
  if (is_forked()) return;
  state_->skipped(step);
  if (state_->add_skip(step)) side_->post(control::Skipped{step});
}

void SessionLink::passed(Step step) {
  if (!is_forked()) state_->skipped(step);
}

void SessionLink::report_passed(Step step) {
  if (!is_forked()) side_->post(control::Passed{step});
}

void SessionLink::step_time(const control::StepTime& steps) {
  if (!is_forked()) side_->post(steps);
}

Status SessionLink::ask_restore(control::AskRestore request, Deadline deadline,
                                const LinkState::Meanwhile& work) {
  CKPT_CHECK(check_process());
  asked_at_ = steady_clock::now();
  request.ask = state_->ask_begin();
  side_->post(std::move(request));
  return state_->wait_slots_for_restore(deadline, watch_, work);
}

Result<Restored> SessionLink::restore(const CopyOut& copy_out, Deadline deadline,
                                      const LinkState::Meanwhile& work) {
  CKPT_CHECK(check_process());
  Restored restored;
  while (true) {
    CKPT_TRY(auto next, state_->wait_offer(deadline, watch_, work));
    if (!next) break;
    CKPT_POINT("load.offer");
    const control::Offer& offer = next->offer;
    const std::uint64_t bytes = offer.record ? offer.record->bytes : 0;
    control::RestoreResult answer;
    answer.offer = offer.offer;
    std::optional<Error> ours;
    if (next->slot.bytes.size() < bytes || !offer.record) {
      answer.result = fail(Errc::unavailable, fmt::format("Slot {} is not mapped", offer.slot));
    } else {
      answer.result = copy_out(offer, next->slot.bytes.first(bytes));
      if (is_our_own_failure(answer.result)) ours.emplace(answer.result.error());
    }
    if (answer.result) {
      restored.source = offer.source;
      restored.source_name = offer.source_name;
      restored.saved_by = offer.saved_by;
      restored.bytes = bytes;
      // The daemon says it, and a text for people subtracts.
      restored.bytes_from_storage = std::min(offer.bytes_from_storage, bytes);
    }
    CKPT_POINT("load.copied");
    side_->post(std::move(answer));
    side_->let_go(std::move(next->slot));
    if (ours) return fail(std::move(*ours));  // Neither asks again nor waits for other ranks.
  }

  CKPT_TRY(const auto begun, state_->begun_answer());
  if (!begun.result) return fail(Error(begun.result.error()));
  // The new timeline frees some Slots: waits so that the first save finds one.
  if (is_ready()) {
    (void)state_->wait_fresh(std::min(deadline, steady_clock::now() + grant_wait_max));
  }
  if (!begun.restored) {
    const bool has_reason = !begun.reason.empty();
    return fail(Errc::not_found,
                "restore: " + (has_reason ? begun.reason : std::string(format::nothing_seen)));
  }
  restored.step = begun.restored->step;
  restored.timeline = begun.timeline;
  restored.took = steady_clock::now() - asked_at_;
  restored.reason = begun.reason;
  restored.newest_seen = begun.newest_seen;
  CKPT_POINT("load.done");
  return restored;
}

Status SessionLink::restored_ok(Step step) {
  CKPT_CHECK(check_process());
  side_->post(control::RestoredOk{step});
  return {};
}

Status SessionLink::wait(Step step, Level level, Deadline deadline) {
  CKPT_CHECK(check_process());
  // The step is stored now, for the caller; its interval may come much later.
  if (level == Level::durable) side_->post(control::Flush{step});
  return state_->wait_level(step, level, deadline);
}

LinkCounters SessionLink::counters() const {
  return is_forked() ? LinkCounters{} : state_->counters();
}

Result<std::string> SessionLink::status(Deadline deadline) {
  CKPT_CHECK(check_process());
  CKPT_CHECK(state_->ask_status());
  side_->post(control::AskStatus{});
  return state_->wait_status(deadline);
}

std::optional<Step> SessionLink::newest_lost() const {
  return is_forked() ? std::nullopt : state_->newest_lost();
}

Status SessionLink::close(Deadline deadline) {
  CKPT_CHECK(check_process());
  state_->ask_close();
  const auto left =
      std::max(duration_cast<milliseconds>(deadline - steady_clock::now()), milliseconds(0));
  side_->post(control::Close{left - std::min(left / 10, close_answer_time)});
  return state_->wait_closed(deadline);
}

Result<std::unique_ptr<SessionLink>> open_link(const Options& options, Deadline deadline) {
  return options.embedded ? open_embedded_link(options, deadline)
                          : open_daemon_link(options, deadline);
}

}  // namespace ckpt::client
