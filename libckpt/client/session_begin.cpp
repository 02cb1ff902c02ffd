// How a session begins:
//  1. A restore ends the running capture, and asks with the tensors that it wants. Without Slots
//  for them it waits, and reports what it waits for.
//  2. It copies what is offered, until all ranks have a good copy of the step, and begins with
//  them.
//  3. A fresh start asks, too: the other ranks must begin as this one does.
#include <fmt/format.h>

#include <utility>

#include "arena/arena_limits.hpp"
#include "base/assert.hpp"
#include "base/counted.hpp"
#include "base/log.hpp"
#include "client/checkpoint_session.hpp"
#include "client/option_text.hpp"
#include "client/restore_copy.hpp"
#include "client/touch_ahead.hpp"
#include "format/doubt.hpp"
#include "format/start.hpp"
#include "os/memory_available.hpp"

namespace ckpt::client {

namespace {

using std::chrono::steady_clock;

// Names the option behind an expired deadline, and its value.
Error named(Error error, Deadline deadline, std::string_view option,
            std::chrono::milliseconds given) {
  if (error.code() != Errc::unavailable || steady_clock::now() < deadline) return error;
  return std::move(error).context(
      fmt::format("not within {}, which is {}", option, show_duration(given)));
}

// Empty: not known.
std::string lost_steps(const Restored& restored) {
  // The daemon says it, and a trainer does not die of what a daemon says.
  if (!restored.newest_seen || *restored.newest_seen < restored.step) return {};
  const std::uint64_t lost = number(*restored.newest_seen) - number(restored.step);
  if (lost == 0) return "; no step was lost";
  return fmt::format("; {} after it {} lost (newest seen: {})", counted(lost, "step"),
                     lost == 1 ? "was" : "were", number(*restored.newest_seen));
}

// Empty: all came from one of them.
std::string shares_of(const Restored& restored) {
  const std::uint64_t stored = restored.bytes_from_storage;
  if (stored == 0 || stored == restored.bytes) return {};
  return fmt::format(" ({} of {}; the rest from memory)", arena::human_bytes(stored),
                     arena::human_bytes(restored.bytes));
}

// One line. A trainer's log need not show what is as it should be.
void log_restored(const Restored& restored) {
  const bool is_passed_over = restored.reason.find(format::repair_advice) != std::string::npos;
  const std::string line = fmt::format(
      "restored step {} from {}{} in {:.1f} ms: {}{}", number(restored.step), restored.source_name,
      shares_of(restored), std::chrono::duration<double, std::milli>(restored.took).count(),
      restored.reason, lost_steps(restored));
  if (is_passed_over) {
    log_warning("{}", line);
  } else {
    log_info("{}", line);
  }
}

// The options have been resolved by now: so it is compared with what each origin gives.
std::string origin_of_dir(const std::string& dir) {
  if (const auto origins = explain(Options())) {
    for (const OptionOrigin& each : *origins)
      if (each.name == "dir" && each.value == dir) return "option dir: " + each.origin;
  }
  return "option dir: code";
}

// One line. A user who forgot a mount, or lost a step, must not learn it from the loss curve.
void log_begins_anew(const Options& options, const Error& error) {
  const std::size_t found = error.text().find(format::nothing_seen);
  if (found != std::string::npos) {
    const std::string where = options.dir.empty() ? ""
                                                  : fmt::format(" or in {} ({})", options.dir,
                                                                origin_of_dir(options.dir));
    const std::string more = error.text().substr(found + format::nothing_seen.size());
    const bool was_elsewhere = more.find(format::job_was_elsewhere) != std::string::npos;
    Log::write(was_elsewhere ? LogLevel::warning : LogLevel::info,
               fmt::format("job {} begins anew: there is no checkpoint in memory{}{}", options.job,
                           where, more));
  } else {
    log_warning("job {} begins anew; {}{}", options.job, error.text(),
                options.dir.empty()
                    ? ""
                    : "; if " + options.dir + " has it whole, a restore from its path takes it");
  }
}

// A choice that no rank could have is refused before the others hear of it.
Status check_source(const RestoreRequest& request, const std::string& dir) {
  if (request.source == SourceChoice::any) return {};
  if (!request.from.empty())
    return fail(
        Errc::invalid_argument,
        fmt::format("restore from {}: give no source with it: the path is one", request.from));
  if (request.source == SourceChoice::storage && dir.empty())
    return fail(Errc::invalid_argument, "restore from storage: the job has no directory");
  return {};
}

}  // namespace

Status CheckpointSession::prepare() {
  CKPT_CHECK(check_open());
  CKPT_CHECK(finish_capture({}));
  CKPT_CHECK(update_layout());
  const Deadline deadline = open_deadline();
  if (Status slots = slots_.ask(deadline); !slots) {
    return fail(named(std::move(slots).error(), deadline, "open_deadline", options_.open_deadline));
  }
  // Until then captures take a slower way, which is no error.
  if (devices_.has_gpus()) (void)devices_.pins()->wait_settled(deadline);
  return capture_.plan(slots_.layout(), registry_);
}

Result<Restored> CheckpointSession::restore(RestoreRequest request,
                                            const std::optional<Choice>& choice) {
  CKPT_CHECK(check_open());
  if (request.step && !request.from.empty())
    return fail(Errc::invalid_argument,
                fmt::format("restore step {} from {}: give one of them; the path names its step",
                            number(*request.step), request.from));
  CKPT_CHECK(check_source(request, options_.dir));
  teller_.watch(request.watch);
  link_->watch_restores(std::move(request.watch));
  RestoreTerms terms;
  terms.choose = choice ? &choice->targets : nullptr;
  terms.leaves_rest = request.leaves_rest;
  if (choice && !request.renamed.empty())
    return fail(Errc::invalid_argument,
                "restore: renamed: targets are chosen by their names there");
  CKPT_TRY(terms.names, SavedNames::from(std::move(request.renamed)));
  CKPT_TRY(auto wanted, terms.names.of(registry_.wanted()));
  LoadRequest load;
  load.path = std::move(request.from);
  load.is_alone = options_.world_size == 1;
  load.rank = choice ? choice->rank : options_.rank;
  if (!choice) load.wanted = {options_.world_size, std::move(wanted)};
  control::AskRestore ask;
  ask.wanted = request.step;
  ask.source = request.source;
  auto restored = load.path.empty() ? restore_agreed(std::move(ask), terms)
                                    : restore_loaded(std::move(load), terms);
  teller_.end();
  return restored;
}

Result<Restored> CheckpointSession::restore_agreed(control::AskRestore request,
                                                   const RestoreTerms& terms) {
  const bool is_step_named = request.wanted.has_value();
  standing_.started();
  Status asked = finish_capture({});
  if (asked) asked = update_layout();
  request.joins_shards = terms.choose != nullptr;
  if (asked) asked = slots_.ask_for_restore(/*wants_layout=*/!request.joins_shards);
  if (asked) {
    auto wanted = slots_.wanted(terms.names);
    if (wanted) {
      request.tensors = std::move(*wanted);
    } else {
      asked = fail(std::move(wanted).error());
    }
  }
  if (!asked) return fail(standing_.failed_alone(std::move(asked).error(), is_step_named));
  std::optional<Error> refusal;
  const SessionLink::CopyOut copy = [&](const control::Offer& offer,
                                        std::span<const std::byte> slot) {
    CKPT_ASSERT(offer.record != nullptr);
    Status copied = copy_out(*offer.record, slot, terms);
    if (!copied) refusal.emplace(copied.error());
    return copied;
  };
  Deadline deadline = deadline_after(options_.restore_deadline);
  // A choice is not known yet, and tensors that are left out keep their memory as it is.
  const bool fills_all = terms.choose == nullptr && !terms.leaves_rest;
  const auto memory = os::memory_available();
  TouchAhead touch(fills_all ? registry_.host_memory() : std::vector<std::span<std::byte>>(),
                   memory ? memory->bytes : 0);
  const SessionLink::Restoring restoring{copy, [&touch] { return touch.go_on(); }};
  auto restored = ask_and_restore(std::move(request), restoring, deadline);
  if (restored) {
    standing_.restored(restored->step);
    schedule_.restart(restored->step);
    account_.restart();
    capture_.restart(restored->step);
    timer_.restart();
    if (options_.rank == 0) log_restored(*restored);
    return restored;
  }
  Error error =
      named(std::move(restored).error(), deadline, "restore_deadline", options_.restore_deadline);
  // Our error names the tensor and the shapes. The error for all ranks says only that one refused.
  if (refusal && refusal->code() == Errc::invalid_argument) error = *refusal;
  auto failed = standing_.failed(std::move(error), is_step_named);
  if (failed.begins_anew && options_.rank == 0) log_begins_anew(options_, failed.error);
  if (failed.begins_again) (void)begin_timeline(open_deadline());  // Else the next save does it.
  return fail(std::move(failed.error));
}

// The time for the Slots does not count as time for the bytes: memory of hundreds of GB is not made
// at once.
Result<Restored> CheckpointSession::ask_and_restore(control::AskRestore request,
                                                    const SessionLink::Restoring& restoring,
                                                    Deadline& deadline) {
  capture_.forget_slots();  // It may fill any of them.
  if (Status slots = link_->ask_restore(std::move(request), deadline, restoring.work); !slots) {
    if (slots.error().code() != Errc::unavailable) slots_.forget_room();
    return fail(std::move(slots).error());
  }
  deadline = deadline_after(options_.restore_deadline);
  return link_->restore(restoring.copy_out, deadline, restoring.work);
}

Status CheckpointSession::copy_out(const format::ShardRecord& record,
                                   std::span<const std::byte> slot, const RestoreTerms& terms) {
  RestoreCopy copy({devices_, registry_, blobs_, teller_, options_.restore_deadline,
                    [this] { standing_.overwrites(); }});
  return copy.run(record, slot, terms);
}

Result<Restored> CheckpointSession::restore_loaded(LoadRequest request, const RestoreTerms& terms) {
  const auto began_at = steady_clock::now();
  CKPT_CHECK(finish_capture({}));
  request.deadline = deadline_after(options_.restore_deadline);
  request.teller = &teller_;
  standing_.started_from_path();
  CKPT_TRY(const LoadedShard loaded, load_shard(std::move(request)));
  if (Status copied = copy_out(*loaded.record, loaded.bytes(), terms); !copied)
    return fail(standing_.failed_alone(std::move(copied).error(), true));
  Restored restored;
  restored.step = loaded.record->id.at.step;
  restored.timeline = loaded.record->id.at.timeline;
  restored.source = RestoreSource::storage;
  restored.source_name = loaded.directory;
  restored.saved_by = loaded.saved_by;
  restored.reason = loaded.reason;
  restored.bytes = restored.bytes_from_storage = loaded.record->bytes;
  restored.took = steady_clock::now() - began_at;
  standing_.loaded();
  return restored;
}

Status CheckpointSession::start_fresh() {
  CKPT_CHECK(check_open());
  standing_.allow_saves();
  const bool is_anew = standing_.has_begun();
  if (is_anew && schedule_.is_at_beginning()) return {};
  if (is_anew) CKPT_CHECK(finish_capture({}));
  CKPT_CHECK(prepare());  // The start ends with the first granted Slot.
  if (is_anew) standing_.begins_anew();
  const Deadline deadline = open_deadline();
  Status fresh = link_->start_fresh(deadline, is_anew ? Fresh::anew : Fresh::asked);
  if (!fresh)
    return fail(named(std::move(fresh).error(), deadline, "open_deadline", options_.open_deadline));
  standing_.begun_fresh();
  capture_.restart(std::nullopt);
  schedule_.restart(std::nullopt);  // The steps of refused or earlier saves count no more.
  account_.restart();
  timer_.restart();
  return {};
}

Status CheckpointSession::restored_ok(Step step) {
  CKPT_CHECK(check_open());
  CKPT_CHECK(standing_.check_restored(step));
  return link_->restored_ok(step);
}

}  // namespace ckpt::client
