// A save:
//  1. The step must grow; the policy and the agreement of the ranks must ask for it. One that was
//  refused may come again, unless a capture of it was begun or other ranks may wait for it.
//  2. What is left of the capture before is copied, and told.
//  3. Layout and Slots for what is registered now: only the first save waits for them.
//  4. A granted Slot is taken; with none, the step is skipped, counted and told.
//  5. The Snapshotter copies; whoever copies the last byte tells the engine that the Slot is
//  filled, or, where captures are held, leaves that to who judges the capture.
#include "client/trainer_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "client/option_text.hpp"
#include "format/torch_archive.hpp"
#include "snapshot/policy.hpp"

namespace ckpt::client {

namespace {

using std::chrono::steady_clock;

// Ending a capture means combining checksums and posting one message. Longer: the machine is stuck.
constexpr std::chrono::seconds capture_end_deadline{10};

// Whose first save finds none free for so long will find one later.
constexpr std::chrono::seconds grant_wait_max{1};
constexpr std::chrono::milliseconds passed_interval{20};
constexpr std::chrono::seconds ask_slots_interval{30};
// Every language that reads a checkpoint's files has such a number.
constexpr Step step_max{INT64_MAX};

// Of a deadline that an option gives, who meets it is told which, and how long it was.
Error named(Error error, Deadline deadline, std::string_view option,
            std::chrono::milliseconds given) {
  if (error.code() != Errc::unavailable || steady_clock::now() < deadline) return error;
  return std::move(error).context(
      fmt::format("not within {}, which is {}", option, show_duration(given)));
}

std::uint64_t skipped_for_want(const Stats& stats) {
  return stats.skipped_no_slot + stats.skipped_unavailable;
}

}  // namespace

TrainerSession::TrainerSession(Options options, std::unique_ptr<Link> link,
                               std::uint64_t chunk_bytes)
    : options_(std::move(options)),
      chunk_bytes_(chunk_bytes),
      link_(std::move(link)),
      devices_(options_),
      registry_(&devices_),
      blobs_(options_.blob_capacity),
      account_(options_.rank == 0) {
  CKPT_ASSERT(link_ != nullptr);
  link_->keep_mapped_by(devices_.pins());
}

TrainerSession::~TrainerSession() {
  snapshotter_.reset();  // Waits: the listener, which is this, must still be whole.
  drop_held();
  devices_.pins()->stop();  // The Link says that nothing is mapped when it goes.
  collect();
  report();
}

Deadline TrainerSession::open_deadline() const {
  return deadline_after(options_.open_deadline);
}

Status TrainerSession::tell_layout(Deadline deadline) {
  CKPT_CHECK(check_open());
  CKPT_CHECK(finish_capture({}));
  CKPT_TRY(const bool is_changed, update_layout());
  if (!is_changed && is_layout_told_ && link_->is_ready()) return {};
  Status slots = send_layout(deadline);
  is_layout_told_ = slots || slots.error().code() == Errc::unavailable;
  return slots;
}

Status TrainerSession::send_layout(Deadline deadline) {
  Status slots = link_->set_layout(layout_, deadline);
  const bool may_come = slots || slots.error().code() == Errc::unavailable;
  room_asked_ = may_come ? layout_.slot_bytes : 0;
  return slots;
}

Status TrainerSession::check_open() const {
  if (link_) return {};
  return fail(Errc::invalid_argument, "the Checkpointer was closed");
}

Status TrainerSession::add(std::string name, TensorRef tensor) {
  CKPT_CHECK(check_open());
  return registry_.add(std::move(name), std::move(tensor));
}

Status TrainerSession::add_archive(std::string name, std::span<const NamedTensor> entries) {
  CKPT_CHECK(check_open());
  return registry_.add_archive(std::move(name), entries);
}

Status TrainerSession::remove(std::string_view name) {
  CKPT_CHECK(check_open());
  // Its memory may go when we return.
  CKPT_CHECK(finish_capture({}));
  return registry_.remove(name);
}

Status TrainerSession::add_blob(std::string name, std::span<std::byte> bytes) {
  CKPT_CHECK(check_open());
  return blobs_.add(std::move(name), bytes);
}

Status TrainerSession::set_blob(std::string name, std::span<const std::byte> bytes) {
  CKPT_CHECK(check_open());
  return blobs_.set(std::move(name), bytes);
}

std::optional<std::span<const std::byte>> TrainerSession::blob(std::string_view name) const {
  return blobs_.find(name);
}

Result<bool> TrainerSession::is_due(Step step) {
  CKPT_CHECK(check_open());
  const StepTimer::Pause pause(timer_);
  tell_step_time(step, pause.began());
  collect();
  report();
  const bool is_refused = !check_step(step);
  if (is_refused || not_now(step, Due::by_policy) != SaveOutcome::not_due) return true;
  last_seen_ = step;
  link_->passed(step);
  return false;
}

Result<SaveOutcome> TrainerSession::save(Step step, Stream stream, Due due) {
  CKPT_CHECK(check_open());
  const SaveAccount::Held held(account_);
  const StepTimer::Pause pause(timer_);
  tell_step_time(step, pause.began());
  collect();
  report();
  // Step 1.
  if (Status grows = check_step(step); !grows) {
    account_.failed(grows.error());
    return fail(std::move(grows).error());
  }
  last_seen_ = step;
  if (const auto reason = not_now(step, due)) {
    if (*reason == SaveOutcome::not_due) {
      link_->passed(step);
      return *reason;
    }
    account_.skipped(*reason);
    // Who had not heard of the agreement in time has captured it, and waits until it is given up.
    link_->skipped(step);
    return *reason;
  }
  const std::optional<Step> due_before = std::exchange(last_due_, step);
  if (refused_ != step) account_.due();
  const Step agreed = link_->next_capture();
  Result<SaveOutcome> outcome = save_due(step, stream);
  if (outcome) refused_.reset();
  if (outcome && *outcome == SaveOutcome::started) {
    captured_for_ = agreed;
    return outcome;
  }
  if (outcome) {
    skipped_ = step;
    link_->skipped(step);
    account_.skipped(*outcome);
    return outcome;
  }
  refused_ = step;
  if (must_be_skipped(step)) {
    link_->skipped(step);
  } else {
    last_due_ = due_before;
    link_->passed(step);
  }
  Error error = std::move(outcome).error().context(fmt::format("save step {}", number(step)));
  account_.failed(error);
  return fail(std::move(error));
}

// Who captured the step waits for us, until he hears that we skip it; then it stays skipped.
bool TrainerSession::must_be_skipped(Step step) const {
  const bool may_be_waited_for = has_begun_ && options_.world_size > 1;
  return newest_begun_ == step || may_be_waited_for;
}

std::optional<SaveOutcome> TrainerSession::not_now(Step step, Due due) {
  const Step agreed = link_->next_capture();
  if (due == Due::by_policy && options_.save_mem_interval.steps == 0) {
    // By time: the coordinator's clock decides, and announces a step that all ranks still have
    // before them; each announcement is good for one capture.
    const bool is_wanted = snapshot::is_due(options_.save_mem_interval, step) && step >= agreed &&
                           captured_for_ != agreed;
    if (is_wanted) return std::nullopt;
    tell_passed(step);
    return SaveOutcome::not_due;
  }
  if (due == Due::by_policy && !snapshot::is_due(options_.save_mem_interval, step))
    return SaveOutcome::not_due;
  if (step < agreed) return SaveOutcome::skipped_by_agreement;
  return std::nullopt;
}

void TrainerSession::tell_step_time(Step step, StepTimer::TimePoint now) {
  const bool is_capturing = snapshotter_ && snapshotter_->is_running();
  const auto measured = timer_.step_ended(step, now, is_capturing);
  if (measured && options_.yield == Yield::automatic) link_->step_time(*measured);
}

// For the coordinator to know how far we are; not for each step of a fast loop. This step may still
// be saved, due or not: only those before it are over.
void TrainerSession::tell_passed(Step step) {
  const auto now = steady_clock::now();
  if (step == Step{} || now < tell_passed_from_) return;
  const Step over{number(step) - 1};
  if (newest_begun_ == over) return;  // Its capture says so.
  tell_passed_from_ = now + passed_interval;
  link_->skipped(over);
}

Status TrainerSession::check_step(Step step) const {
  if (step > step_max) {
    return fail(Errc::invalid_argument,
                fmt::format("save step {}: the largest is {}", number(step), number(step_max)));
  }
  const bool goes_back = last_seen_ && step < *last_seen_;
  const bool is_repeated = last_due_ && step <= *last_due_;
  if (!goes_back && !is_repeated) return {};
  if (step == refused_) {
    return fail(Errc::invalid_argument,
                fmt::format("save step {}: it was refused before and given up for all ranks; save "
                            "a later step",
                            number(step)));
  }
  if (step == skipped_) {
    return fail(Errc::invalid_argument,
                fmt::format("save step {}: it was skipped, which all ranks were told; save a later "
                            "step",
                            number(step)));
  }
  const Step newest = goes_back ? *last_seen_ : *last_due_;
  return fail(
      Errc::invalid_argument,
      fmt::format("save step {}: steps must grow, and step {} came before; to train again "
                  "from an older step, restore that step first (a restore from a path changes the "
                  "tensors only)",
                  number(step), number(newest)));
}

Result<SaveOutcome> TrainerSession::save_due(Step step, Stream stream) {
  if (restore_failure_) {
    // Not with its code: who saves takes not_found, say, for harmless.
    return fail(Error(Errc::invalid_argument, restore_failure_->text(), restore_failure_->cause())
                    .context("refused, since the restore before it failed and what is stored may "
                             "be good; restore again, or call start_fresh() to begin without it"));
  }
  // Step 2.
  CKPT_CHECK(finish_capture(stream));
  report();
  // Step 3.
  const bool may_wait = !std::exchange(has_waited_, true);
  CKPT_TRY(const bool is_ready, make_ready(may_wait ? open_deadline() : steady_clock::now()));
  if (!is_ready) return SaveOutcome::skipped_unavailable;
  // Step 4.
  const std::optional<TakenSlot> granted = link_->take_slot(step);
  if (!granted) return SaveOutcome::skipped_no_slot;
  if (granted->bytes.size() < layout_.slot_bytes) {  // Of an older, smaller layout.
    link_->abandon(*granted);
    return SaveOutcome::skipped_no_slot;
  }
  CKPT_CHECK(begin_capture(*granted, step, stream));
  return SaveOutcome::started;
}

Status TrainerSession::begin_capture(const TakenSlot& granted, Step step, Stream stream) {
  // Step 5.
  CKPT_ASSERT(!snapshotter_->is_running());
  granted_ = granted;
  newest_begun_ = step;
  const auto names = blobs_.names();
  blob_names_.assign(names.begin(), names.end());
  snapshot::CaptureRequest request;
  request.step = step;
  request.timeline = link_->identity().timeline;
  request.slot = granted.bytes;
  request.blobs = blobs_.spans();
  request.stream = stream;
  // An archive's headers are written when all else is there: the engine takes the checksums.
  request.with_checksums = options_.checksum_in_copy && !layout_.has_archives();
  if (on_copied_) held_.begin(step);
  Status begun = snapshotter_->begin(request);
  if (begun) {
    account_.started(step);
    timer_.capture_began();
    return begun;
  }
  // It is told here, once: what the end of the capture says is the same.
  CKPT_CHECK(snapshotter_->wait_idle(steady_clock::now() + capture_end_deadline));
  account_.forget_ended();
  return begun;
}

void TrainerSession::capture_arrived(std::uint64_t bytes) {
  // What is written into an archive at the end would be missed.
  if (!layout_.has_archives()) link_->arrived(granted_, bytes);
}

void TrainerSession::capture_ended(const snapshot::Captured& captured) {
  if (!captured.status) {
    held_.forget();
    return give_up(captured);
  }
  format::finish_archives(layout_, granted_.bytes);
  CopiedCapture copied;
  copied.bytes = captured.bytes;
  copied.took = captured.took;
  node::Filled& filled = copied.filled;
  filled.slot = granted_.slot;
  filled.step = captured.step;
  filled.layout_version = layout_.version;
  filled.blob_bytes = captured.blob_bytes;
  filled.blobs.assign(captured.blobs.begin(), captured.blobs.end());
  filled.blob_names = blob_names_;
  filled.chunk_bytes = chunk_bytes_;
  filled.chunk_crcs.assign(captured.chunk_crcs.begin(), captured.chunk_crcs.end());
  if (!held_.is_held(captured.step)) return tell({std::move(copied), {}});
  if (auto judged = held_.copied(std::move(copied))) return tell(std::move(*judged));
  on_copied_(captured.step);
}

// At once: the training thread may be waiting for this very step.
void TrainerSession::give_up(const snapshot::Captured& captured) {
  link_->abandon(granted_);
  account_.ended(captured);
  link_->skipped(captured.step);
}

void TrainerSession::tell(HeldCapture::Judged judged) {
  snapshot::Captured captured;
  captured.step = judged.capture.filled.step;
  captured.status = std::move(judged.verdict);
  captured.bytes = judged.capture.bytes;
  captured.took = judged.capture.took;
  if (!captured.status) return give_up(captured);
  CKPT_POINT("client.before_filled");
  account_.ended(captured);  // First: whoever hears that the step is captured finds it counted.
  link_->filled(granted_, std::move(judged.capture.filled));
}

Status TrainerSession::hold_captures(std::function<void(Step)> on_copied) {
  CKPT_CHECK(check_open());
  CKPT_CHECK(finish_capture({}));
  on_copied_ = std::move(on_copied);
  return {};
}

Status TrainerSession::settle(Step step, Status verdict) {
  CKPT_CHECK(check_open());
  if (!verdict)
    verdict = fail(Error(verdict.error()).context(fmt::format("capture step {}", number(step))));
  if (auto judged = held_.judge(step, std::move(verdict))) tell(std::move(*judged));
  return {};
}

void TrainerSession::drop_held() {
  const std::optional<Step> step = held_.waiting();
  if (!step) return;
  auto judged = held_.judge(
      *step, fail(Errc::unavailable,
                  fmt::format("capture step {}: it was held, and nobody told whether its tensors "
                              "had stayed as they were",
                              number(*step))));
  CKPT_ASSERT(judged.has_value());
  tell(std::move(*judged));
}

Status TrainerSession::guard(Stream stream) {
  CKPT_CHECK(check_open());
  if (!snapshotter_ || !snapshotter_->is_running()) return {};
  const SaveAccount::Held held(account_);
  const StepTimer::Pause pause(timer_);
  Status guarded = snapshotter_->guard(stream);
  if (!guarded) account_.failed(guarded.error());
  return guarded;
}

Status TrainerSession::finish_capture(Stream stream) {
  if (snapshotter_) {
    CKPT_CHECK(snapshotter_->guard(stream));
    CKPT_CHECK(snapshotter_->wait_idle(steady_clock::now() + capture_end_deadline));
  }
  drop_held();
  collect();
  return {};
}

void TrainerSession::collect() {
  if (account_.collect()) captured_for_.reset();
}

void TrainerSession::report() {
  if (account_.has_line() && link_) account_.report(link_->counters());
}

Status TrainerSession::prepare() {
  const Deadline deadline = open_deadline();
  if (Status slots = tell_layout(deadline); !slots) {
    return fail(named(std::move(slots).error(), deadline, "open_deadline", options_.open_deadline));
  }
  // Until then captures go a slower way; it is no error.
  if (devices_.has_gpus()) (void)devices_.pins()->wait_settled(deadline);
  return make_snapshotter();
}

Status TrainerSession::prepare_in_background() {
  Status slots = tell_layout(steady_clock::now());
  if (!slots && slots.error().code() == Errc::unavailable) return {};  // They are being made.
  return slots;
}

// What has asked for more room before keeps it.
Status TrainerSession::prepare_for_restored() {
  CKPT_CHECK(finish_capture({}));
  CKPT_CHECK(update_layout());
  return layout_.slot_bytes <= room_asked_ ? Status() : prepare_in_background();
}

Result<bool> TrainerSession::update_layout() {
  const bool has_blobs = !blobs_.is_empty();
  if (registry_version_ == registry_.version() && has_blobs == has_blob_member_) return false;
  const std::uint32_t version = registry_version_ ? layout_.version : 0;
  const auto specs = registry_.specs();
  CKPT_TRY(
      format::Layout layout,
      format::make_layout(specs, options_.rank, has_blobs ? options_.blob_capacity : 0, version));
  registry_version_ = registry_.version();
  has_blob_member_ = has_blobs;
  snapshotter_.reset();  // Of other addresses, even where the Layout is the same.
  if (layout == layout_) return false;
  layout_ = std::move(layout);
  ++layout_.version;
  is_layout_told_ = false;
  return true;
}

Status TrainerSession::make_snapshotter() {
  if (snapshotter_) return {};
  format::HeaderFacts facts;
  facts.job = options_.job;
  facts.run = to_hex(link_->identity().run);
  facts.rank = options_.rank;
  facts.world_size = options_.world_size;
  CKPT_TRY(auto header, format::render_header(layout_, facts));
  const auto sources = registry_.sources(layout_);
  snapshot::CaptureListener& listener = *this;
  snapshotter_ = std::make_unique<snapshot::Snapshotter>(
      snapshot::Snapshotter::Plan{layout_, sources, std::move(header), devices_.devices(),
                                  chunk_bytes_},
      listener);
  return {};
}

// Who may wait for them asks, though a restore may have asked before. What could not be had is
// asked for again now and then; until it is, the reason stays the same.
Status TrainerSession::ask_slots(bool is_changed, Deadline deadline) {
  const auto now = steady_clock::now();
  if (is_changed) slots_failure_.reset();
  Status slots;
  const bool may_wait = deadline > now && !link_->is_ready();
  if (is_changed || !is_layout_told_ || may_wait || (slots_failure_ && now >= ask_slots_again_)) {
    ask_slots_again_ = now + ask_slots_interval;
    slots = send_layout(deadline);
    is_layout_told_ = true;
  } else if (!link_->is_ready()) {
    slots = link_->slots_status();
  }
  if (slots) {
    slots_failure_.reset();
  } else if (slots.error().code() != Errc::unavailable) {
    slots_failure_.emplace(slots.error());
  } else if (slots_failure_) {
    return fail(Error(*slots_failure_));
  }
  return slots;
}

Result<bool> TrainerSession::make_ready(Deadline deadline) {
  CKPT_TRY(const bool is_changed, update_layout());
  Status slots = ask_slots(is_changed, deadline);
  if (!slots && slots.error().code() != Errc::unavailable) return fail(std::move(slots).error());
  if (!slots) {
    account_.unavailable(slots.error());
    return false;
  }
  if (!has_begun_) {
    Status fresh = link_->start_fresh(deadline);
    if (!fresh && fresh.error().code() == Errc::unavailable) {
      account_.unavailable(fresh.error());
      return false;
    }
    CKPT_CHECK(std::move(fresh));
    has_begun_ = has_trained_ = true;
  } else if (const auto now = steady_clock::now(); now < deadline) {
    // Slots that were just made are granted one by one. That none is free is no error.
    (void)link_->wait_granted(std::min<Deadline>(deadline, now + grant_wait_max));
  }
  if (!link_->is_ready()) return false;
  CKPT_CHECK(make_snapshotter());
  return true;
}

Status TrainerSession::wait(Step step, Level level, Deadline deadline) {
  CKPT_CHECK(check_open());
  // Of another language, or cast from a number: no step would ever reach it.
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
  if (waited || waited.error().code() != Errc::not_found || step != refused_) return waited;
  return fail(Errc::not_found, fmt::format("wait until step {} is {}: its save was refused",
                                           number(step), to_string(level)));
}

Result<Restored> TrainerSession::restore(RestoreRequest request,
                                         const std::optional<Choice>& choice) {
  CKPT_CHECK(check_open());
  if (request.step && !request.from.empty())
    return fail(Errc::invalid_argument,
                fmt::format("restore step {} from {}: give one of them, a path names its step",
                            number(*request.step), request.from));
  teller_.watch(request.watch);
  link_->watch_restores(std::move(request.watch));
  const ChooseTargets* choose = choice ? &choice->targets : nullptr;
  if (request.from.empty()) return restore_agreed(request.step, choose);
  LoadRequest load;
  load.path = std::move(request.from);
  load.rank = choice ? choice->rank : options_.rank;
  if (!choice) load.world_size = options_.world_size;
  return restore_loaded(std::move(load), choose);
}

Result<Restored> TrainerSession::restore_agreed(std::optional<Step> step,
                                                const ChooseTargets* choose) {
  is_partly_restored_ = false;
  if (Status prepared = prepare_for_restored(); !prepared) {
    return fail(failed_to_restore(std::move(prepared).error(), step.has_value()));
  }
  std::optional<Error> refusal;
  const Link::CopyOut copy = [&](const node::SlotOffer& offer, std::span<const std::byte> slot) {
    CKPT_ASSERT(offer.record != nullptr);
    Status copied = copy_out(*offer.record, slot, choose);
    if (!copied) refusal.emplace(copied.error());
    return copied;
  };
  Deadline deadline = deadline_after(options_.restore_deadline);
  auto restored = ask_and_restore(step, copy, deadline);
  teller_.end();
  if (restored) {
    has_begun_ = has_trained_ = true;
    restore_failure_.reset();
    restored_ = restored->step;
    continue_after(restored->step);
    if (options_.rank == 0)
      log_info("restored step {} from {} in {:.1f} ms: {}", number(restored->step),
               restored->source_name,
               std::chrono::duration<double, std::milli>(restored->took).count(), restored->reason);
    return restored;
  }
  has_begun_ = false;  // The next save begins with the other ranks, or goes on as before.
  Error error =
      named(std::move(restored).error(), deadline, "restore_deadline", options_.restore_deadline);
  // Ours tells which tensor and which shapes; the one for all ranks only that somebody refused.
  if (refusal && refusal->code() == Errc::invalid_argument) error = *refusal;
  const bool is_nothing_there = error.code() == Errc::not_found && !is_partly_restored_;
  if (is_nothing_there && !step) restore_failure_.reset();
  // In mid-training a step that nobody has changes nothing: this session goes on where it was.
  if (is_nothing_there && step && has_trained_)
    has_begun_ = link_->start_fresh(open_deadline()).has_value();
  return fail(failed_to_restore(std::move(error), step.has_value()));
}

// As long for its Slots as for its bytes: memory of hundreds of GB is not made at once.
Result<Restored> TrainerSession::ask_and_restore(std::optional<Step> step,
                                                 const Link::CopyOut& copy, Deadline& deadline) {
  if (Status slots = link_->ask_restore(step, deadline); !slots) {
    if (slots.error().code() != Errc::unavailable) room_asked_ = 0;
    return fail(std::move(slots).error());
  }
  deadline = deadline_after(options_.restore_deadline);
  return link_->restore(copy, deadline);
}

Error TrainerSession::failed_to_restore(Error error, bool is_step_named) {
  // The copy that was begun died with its daemon, and there is no other. But not_found says "train
  // from the beginning", and these tensors are not the beginning's any more.
  if (is_partly_restored_ && error.code() == Errc::not_found)
    error = Error(Errc::unavailable, error.text() + "; restore again");
  // Without the step that was named there may well be others, which a new beginning would replace.
  const bool would_begin = is_step_named && !has_trained_;
  if (error.code() != Errc::not_found || would_begin) restore_failure_.emplace(error);
  return tell_if_partly_restored(std::move(error));
}

Status TrainerSession::start_fresh() {
  CKPT_CHECK(check_open());
  restore_failure_.reset();
  if (has_begun_) return {};
  CKPT_CHECK(prepare());  // The beginning ends with the first Slot.
  const Deadline deadline = open_deadline();
  if (Status fresh = link_->start_fresh(deadline); !fresh) {
    return fail(named(std::move(fresh).error(), deadline, "open_deadline", options_.open_deadline));
  }
  has_begun_ = has_trained_ = true;
  restored_.reset();
  return {};
}

Status TrainerSession::copy_out(const format::ShardRecord& record, std::span<const std::byte> slot,
                                const ChooseTargets* choose) {
  if (choose != nullptr) return copy_chosen(record, slot, *choose);
  const auto targets = registry_.targets();
  CKPT_TRY(const snapshot::RestorePlan plan, snapshot::plan_restore(record, targets));
  CKPT_CHECK(blobs_.check(record));
  CKPT_CHECK(copy_planned(record, slot, plan));
  blobs_.restore(record, slot);
  return {};
}

Status TrainerSession::copy_chosen(const format::ShardRecord& record,
                                   std::span<const std::byte> slot, const ChooseTargets& choose) {
  std::vector<StoredTensor> stored;
  for (const auto& place : record.layout.tensors)
    stored.push_back({place.name, place.dtype, place.shape, place.alias_of});
  blobs_.keep(record, slot);
  CKPT_TRY(auto chosen, choose(record.id.at.step, stored));
  TensorRegistry registry(&devices_);
  for (NamedTensor& target : chosen)
    CKPT_CHECK(registry.add(std::move(target.name), std::move(target.tensor)));
  const auto targets = registry.targets();
  constexpr auto some = snapshot::Wanted::some_tensors;
  CKPT_TRY(const snapshot::RestorePlan plan, snapshot::plan_restore(record, targets, some));
  return copy_planned(record, slot, plan);
}

Status TrainerSession::copy_planned(const format::ShardRecord& record,
                                    std::span<const std::byte> slot,
                                    const snapshot::RestorePlan& plan) {
  is_partly_restored_ = true;
  teller_.begin(RestoreProgress::Phase::copying, "own memory", record.bytes);
  const Deadline deadline = deadline_after(options_.restore_deadline);
  // Memory that is not pinned yet is copied a slower way.
  if (devices_.has_gpus()) (void)devices_.pins()->wait_settled(deadline);
  const auto copied = [this](std::uint64_t bytes) { teller_.done(bytes); };
  return snapshot::restore_tensors(record, slot, plan,
                                   {devices_.devices(), devices_.threads(), deadline, copied});
}

Result<Restored> TrainerSession::restore_loaded(LoadRequest request, const ChooseTargets* choose) {
  const auto began_at = steady_clock::now();
  CKPT_CHECK(finish_capture({}));
  request.deadline = deadline_after(options_.restore_deadline);
  request.teller = &teller_;
  is_partly_restored_ = false;
  auto read = load_shard(std::move(request));
  Status copied = read ? copy_out(*read->record, read->bytes(), choose) : Status();
  teller_.end();
  CKPT_TRY(const LoadedShard loaded, std::move(read));
  if (!copied) return fail(failed_to_restore(std::move(copied).error(), true));
  Restored restored;
  restored.step = loaded.record->id.at.step;
  restored.timeline = loaded.record->id.at.timeline;
  restored.source = RestoreSource::storage;
  restored.source_name = loaded.directory;
  restored.bytes = loaded.record->bytes;
  restored.took = steady_clock::now() - began_at;
  restore_failure_.reset();
  return restored;
}

Error TrainerSession::tell_if_partly_restored(Error error) const {
  if (!is_partly_restored_) return error;
  return std::move(error).context(
      "the restore overwrote a part of the tensors and then failed; do not train on with them");
}

void TrainerSession::continue_after(Step step) {
  timer_.restart();
  is_partly_restored_ = false;
  last_seen_ = step;
  last_due_ = step;
  refused_.reset();
  skipped_.reset();
  newest_begun_.reset();
  captured_for_.reset();
}

Status TrainerSession::restored_ok(Step step) {
  CKPT_CHECK(check_open());
  if (step == restored_) return link_->restored_ok(step);
  // Said of another step, it would clear the suspicion from the one that was restored.
  return fail(Errc::invalid_argument,
              fmt::format("restored_ok step {}: this session restored {}", number(step),
                          restored_ ? fmt::format("step {}", number(*restored_)) : "nothing"));
}

Stats TrainerSession::stats() {
  collect();
  return account_.stats(link_ ? link_->counters() : last_counters_);
}

Result<std::string> TrainerSession::status(Deadline deadline) {
  CKPT_CHECK(check_open());
  return link_->status(deadline);
}

void TrainerSession::tell_if_behind() const {
  const Stats stats = account_.stats(link_->counters());
  const bool is_behind = last_due_ && stats.saves_started > 0 && stats.captured < last_due_;
  if (!is_behind || skipped_for_want(stats) == 0 || options_.rank != 0) return;
  if (!stats.captured) return log_warning("close: no step is saved");
  const auto missing = account_.due_after(*stats.captured);
  log_warning(
      "close: the newest step known to be saved is {}; {} steps that were due after it, the "
      "last of them {}, are not",
      number(*stats.captured), missing ? std::to_string(*missing) : "the", number(*last_due_));
}

Status TrainerSession::check_captured() const {
  const Stats stats = account_.stats(link_->counters());
  const std::uint64_t skipped = skipped_for_want(stats);
  if (stats.saves_started > 0) {
    return {};
  }
  if (skipped + stats.failed == 0) return {};
  return fail(
      Errc::not_found,
      fmt::format("close: nothing is saved: {} steps were due, none was captured{}{}",
                  skipped + stats.failed, stats.last_error.empty() ? "" : ": ", stats.last_error));
}

Status TrainerSession::close(Deadline deadline) {
  if (!link_) return {};
  Status finished = finish_capture({});
  Status closed = link_->close(deadline);
  const std::optional<Step> lost = link_->newest_lost();
  if (closed && lost && !options_.dir.empty())
    closed = fail(Errc::not_found,
                  fmt::format("close: step {} was only in the memory of a daemon that died, and no "
                              "newer step was saved after it",
                              number(*lost)));
  if (!options_.dir.empty()) tell_if_behind();
  if (closed && !options_.dir.empty()) closed = check_captured();
  last_counters_ = link_->counters();
  account_.report(last_counters_);
  snapshotter_.reset();
  devices_.pins()->stop();  // The Link says that nothing is mapped when it goes.
  link_.reset();
  if (!finished) return finished;
  return closed;
}

}  // namespace ckpt::client
