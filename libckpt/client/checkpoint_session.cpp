// A save:
//  1. The step must grow; the policy and the agreement of the ranks must ask for it. A refused step
//  may come again, unless its capture began or other ranks may wait for it.
//  2. The rest of the previous capture is copied, and reported to the engine. A GPU that is not
//  that far yet is not waited for, unless the caller waits for a Slot: the step is skipped.
//  3. Layout and Slots are made for the registered tensors. Only the first save waits for them.
//  4. A granted Slot is taken, after a wait if the caller wants one. Without a Slot the step is
//  skipped, counted and reported.
//  5. The tensors are copied. The thread that copies the last byte reports the filled Slot, or, if
//  captures are held, leaves that to the verdict.
#include "client/checkpoint_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "client/attach_message.hpp"

namespace ckpt::client {

namespace {

using std::chrono::steady_clock;

// A first save waits no longer than this for a free Slot: a later one will find one.
constexpr std::chrono::seconds first_slot_wait_max{1};

std::string reason_of(SaveOutcome skipped, const std::string& last_error) {
  switch (skipped) {
    case SaveOutcome::skipped_no_slot:
      return "all Slots were in use";
    case SaveOutcome::skipped_by_agreement:
      return "the ranks had agreed on a later step";
    default:
      return "the daemon or its Slots were not available" +
             (last_error.empty() ? "" : "; the last error: " + last_error);
  }
}

// A rank is named where there are several.
std::string name_alone(const Options& options) {
  return options.world_size == 1 ? "job " + options.job : name_for_errors(options);
}

Unexpected lost_with_engine(Step lost, const LinkCounters& counters) {
  std::string stored;
  if (counters.durable)
    stored = fmt::format("; the newest step on storage is {}", number(*counters.durable));
  return fail(Errc::not_found,
              fmt::format("close: step {} was only in the memory of a daemon that died, and no "
                          "newer step was saved after it{}",
                          number(lost), stored));
}

}  // namespace

CheckpointSession::CheckpointSession(Options options, std::unique_ptr<SessionLink> link,
                                     std::uint64_t chunk_bytes)
    : options_(std::move(options)),
      link_(std::move(link)),
      devices_(options_),
      registry_(&devices_),
      blobs_(options_.blob_capacity),
      metrics_(blobs_, options_.keep_best > 0),
      account_(options_.rank == 0 ? options_.job : std::string(), name_alone(options_)),
      commits_(options_.world_size),
      schedule_(options_, *link_),
      slots_(options_, *link_, registry_, blobs_),
      capture_({options_, *link_, devices_, account_, chunk_bytes}) {
  link_->keep_mapped_by(devices_.pins());
}

CheckpointSession::~CheckpointSession() {
  capture_.end();
  devices_.pins()->stop();  // The link reports at its end that nothing is mapped.
  collect();
  report();
}

Deadline CheckpointSession::open_deadline() const {
  return deadline_after(options_.open_deadline);
}

Status CheckpointSession::check_open() const {
  if (link_) return {};
  return fail(Errc::invalid_argument, "the Checkpointer was closed");
}

Status CheckpointSession::add(std::string name, TensorRef tensor) {
  CKPT_CHECK(check_open());
  return registry_.add(std::move(name), std::move(tensor));
}

Status CheckpointSession::add_archive(std::string name, std::span<const NamedTensor> entries) {
  CKPT_CHECK(check_open());
  return registry_.add_archive(std::move(name), entries);
}

Status CheckpointSession::remove(std::string_view name) {
  CKPT_CHECK(check_open());
  // The caller may free its memory when we return.
  CKPT_CHECK(finish_capture({}));
  return registry_.remove(name);
}

Status CheckpointSession::set_frozen(std::span<const std::string> names) {
  CKPT_CHECK(check_open());
  // Else captures would have runs of their own for them, for nothing.
  if (options_.skip_unchanged) registry_.set_frozen({names.begin(), names.end()});
  return {};
}

Status CheckpointSession::add_blob(std::string name, std::span<std::byte> bytes) {
  CKPT_CHECK(check_open());
  return blobs_.add(std::move(name), bytes);
}

Status CheckpointSession::set_blob(std::string name, std::span<const std::byte> bytes) {
  CKPT_CHECK(check_open());
  return blobs_.set(std::move(name), bytes);
}

Status CheckpointSession::set_metric(std::string_view name, double value) {
  CKPT_CHECK(check_open());
  return metrics_.set(name, value);
}

std::optional<std::span<const std::byte>> CheckpointSession::blob(std::string_view name) const {
  return blobs_.find(name);
}

Result<bool> CheckpointSession::is_due(Step step) {
  CKPT_CHECK(check_open());
  const StepTimer::Pause pause(timer_);
  report_step_time(step, pause.began());
  collect();
  report();
  return schedule_.is_due(step);
}

Result<SaveOutcome> CheckpointSession::save(Step step, Stream stream, Due due,
                                            Deadline slot_deadline) {
  CKPT_CHECK(check_open());
  const SaveAccount::HeldTime held(account_);
  const StepTimer::Pause pause(timer_);
  report_step_time(step, pause.began());
  collect();
  report();
  // Step 1.
  if (Status grows = schedule_.check(step); !grows) {
    metrics_.forget();
    account_.failed(grows.error());
    return fail(std::move(grows).error());
  }
  if (const auto reason = schedule_.ask(step, due)) {
    metrics_.forget();
    if (*reason != SaveOutcome::not_due) note_skipped(step, *reason);
    return *reason;
  }
  if (schedule_.begin(step)) account_.due(step);
  metrics_.give_to_save();
  Result<SaveOutcome> outcome = try_save(step, stream, slot_deadline);
  if (!outcome) return fail(refuse(step, std::move(outcome).error()));
  if (*outcome == SaveOutcome::started) {
    schedule_.started();
  } else {
    schedule_.skipped();
    note_skipped(step, *outcome);
  }
  return outcome;
}

Status CheckpointSession::give_up(Step step, std::string why) {
  CKPT_CHECK(check_open());
  metrics_.forget();
  const bool grows = schedule_.check(step).has_value();  // Else its save would be refused as well.
  if (const auto reason = grows ? schedule_.ask(step, Due::always) : std::nullopt) {
    note_skipped(step, *reason);
    return {};
  }
  account_.failed_elsewhere(why);
  account_.not_saved(step, "its save failed: " + why);
  if (!grows) return {};
  if (schedule_.begin(step)) account_.due(step);
  schedule_.refused(standing_.has_begun());
  return {};
}

void CheckpointSession::note_skipped(Step step, SaveOutcome outcome) {
  account_.skipped(outcome);
  if (outcome == SaveOutcome::skipped_no_slot && link_ &&
      commits_.skipped(link_->counters(), steady_clock::now()))
    log_warning("{}: {}", name_alone(options_), commits_.text());
  account_.not_saved(step, reason_of(outcome, account_.stats({}).last_error));
}

Error CheckpointSession::refuse(Step step, Error error) {
  schedule_.refused(standing_.has_begun());
  error = std::move(error).context(fmt::format("save step {}", number(step)));
  account_.failed(error);
  account_.not_saved(step, "its save was refused: " + error.text());
  return error;
}

void CheckpointSession::report_step_time(Step step, StepTimer::TimePoint now) {
  const auto measured = timer_.step_ended(step, now, capture_.is_running());
  if (measured && options_.yield == Yield::automatic) link_->step_time(*measured);
}

Result<SaveOutcome> CheckpointSession::try_save(Step step, Stream stream, Deadline slot_deadline) {
  CKPT_CHECK(standing_.check_save());
  // Step 2.
  CKPT_TRY(const bool has_finished, capture_.finish_soon(stream, slot_deadline));
  collect();
  report();
  if (!has_finished) return SaveOutcome::skipped_no_slot;
  // Step 3.
  CKPT_TRY(const bool is_ready, make_ready(std::max(slots_.save_deadline(), slot_deadline)));
  if (!is_ready) return SaveOutcome::skipped_unavailable;
  // Step 4.
  if (steady_clock::now() < slot_deadline) (void)link_->wait_granted(slot_deadline);
  const std::optional<TakenSlot> slot = link_->take_slot(step);
  if (!slot) return SaveOutcome::skipped_no_slot;
  CKPT_ASSERT(slot->bytes.size() >= slots_.layout().slot_bytes);
  // Step 5.
  schedule_.capture_began(step);
  CKPT_CHECK(capture_.begin(*slot, step, stream, blobs_));
  account_.started(step);
  commits_.started();
  timer_.capture_began();
  return SaveOutcome::started;
}

Status CheckpointSession::hold_captures(std::function<void(Step)> on_copied) {
  CKPT_CHECK(check_open());
  CKPT_CHECK(finish_capture({}));
  capture_.hold(std::move(on_copied));
  return {};
}

Status CheckpointSession::settle(Step step, Status verdict) {
  CKPT_CHECK(check_open());
  capture_.settle(step, std::move(verdict));
  return {};
}

Status CheckpointSession::guard(Stream stream) {
  CKPT_CHECK(check_open());
  if (!capture_.is_running()) return {};
  const SaveAccount::HeldTime held(account_);
  const StepTimer::Pause pause(timer_);
  Status guarded = capture_.guard(stream);
  if (!guarded) account_.failed(guarded.error());
  return guarded;
}

Status CheckpointSession::finish_capture(Stream stream) {
  CKPT_CHECK(capture_.finish(stream));
  collect();
  return {};
}

void CheckpointSession::collect() {
  if (account_.collect()) schedule_.capture_failed();
}

void CheckpointSession::report() {
  if (account_.has_line() && link_) account_.report(link_->counters());
}

Status CheckpointSession::update_layout() {
  CKPT_ASSERT(!capture_.is_running());
  CKPT_TRY(const bool is_changed, slots_.update());
  if (is_changed) capture_.forget_plan();
  return {};
}

Status CheckpointSession::prepare_in_background() {
  CKPT_CHECK(check_open());
  CKPT_CHECK(finish_capture({}));
  CKPT_CHECK(update_layout());
  return slots_.ask_in_background();
}

Result<bool> CheckpointSession::make_ready(Deadline deadline) {
  CKPT_CHECK(update_layout());
  Status ready = slots_.ask_for_save(deadline);
  if (ready && !standing_.has_begun()) {
    ready = begin_timeline(deadline);
  } else if (const auto now = steady_clock::now(); ready && now < deadline) {
    // Slots that were just made are granted one by one. It is no error if none is free.
    (void)link_->wait_granted(std::min<Deadline>(deadline, now + first_slot_wait_max));
  }
  if (!ready && ready.error().code() != Errc::unavailable) return fail(std::move(ready).error());
  if (!ready) account_.unavailable(ready.error());
  if (!ready || !link_->is_ready()) return false;
  CKPT_CHECK(capture_.plan(slots_.layout(), registry_));
  return true;
}

Status CheckpointSession::begin_timeline(Deadline deadline) {
  Status began =
      link_->start_fresh(deadline, standing_.has_asked() ? Fresh::asked : Fresh::implied);
  if (began) {
    standing_.begun();
  } else {
    standing_.not_begun(began.error());
  }
  return began;
}

Status CheckpointSession::wait(Step step, Level level, Deadline deadline) {
  CKPT_CHECK(check_open());
  // Another language, or a cast from a number, may give a level that does not exist.
  if (level < Level::captured || level > Level::durable) {
    return fail(Errc::invalid_argument, fmt::format("wait for step {}: there is no level {}",
                                                    number(step), static_cast<unsigned>(level)));
  }
  if (level == Level::durable && options_.dir.empty()) {
    return fail(Errc::invalid_argument,
                fmt::format("wait until step {} is durable: job {} has no directory, so that "
                            "nothing is stored; wait for committed, or open it with dir",
                            number(step), options_.job));
  }
  const StepTimer::Pause pause(timer_);
  Status waited = link_->wait(step, level, deadline);
  if (waited || waited.error().code() != Errc::not_found) return waited;
  collect();
  const std::string why = account_.why_not_saved(step);
  if (why.empty()) return waited;
  return fail(Errc::not_found, fmt::format("{}: {}", waited.error().text(), why));
}

Stats CheckpointSession::stats() {
  collect();
  Stats stats = account_.stats(link_ ? link_->counters() : last_counters_);
  if (stats.degraded.empty()) stats.degraded = commits_.text();
  return stats;
}

Result<std::string> CheckpointSession::status(Deadline deadline) {
  CKPT_CHECK(check_open());
  return link_->status(deadline);
}

Status CheckpointSession::close(Deadline deadline) {
  if (!link_) return {};
  const std::optional<Step> restored = standing_.restored_step();
  if (options_.dir.empty() && restored && !account_.has_saved()) {
    // It looked at the state of a training, whose only copy this may be.
    if (options_.rank == 0)
      log_info("job {}: closed without a save, so its steps stay in memory", options_.job);
    (void)link_->restored_ok(*restored);
    (void)link_->status(deadline);  // The answer comes behind it.
    last_counters_ = link_->counters();
    leave();
    return {};
  }
  Status finished = finish_capture({});
  Status closed = link_->close(deadline);
  const std::optional<Step> lost = link_->newest_lost();
  last_counters_ = link_->counters();
  // A step of several ranks is saved once it has the parts of all.
  if (options_.world_size > 1)
    last_counters_.saved =
        std::min(last_counters_.saved, std::max(last_counters_.committed, last_counters_.durable));
  if (closed && lost && !options_.dir.empty()) closed = lost_with_engine(*lost, last_counters_);
  if (!options_.dir.empty() && options_.rank == 0) account_.warn_if_behind(last_counters_);
  if (closed && !options_.dir.empty()) closed = account_.check_captured(last_counters_);
  if (closed && !options_.dir.empty() && !restored)
    closed = account_.check_of_all(last_counters_, options_.world_size);
  account_.report(last_counters_);
  leave();
  if (!finished) return finished;
  return closed;
}

void CheckpointSession::leave() {
  capture_.end();
  devices_.pins()->stop();  // The link reports at its end that nothing is mapped.
  link_.reset();
}

}  // namespace ckpt::client
