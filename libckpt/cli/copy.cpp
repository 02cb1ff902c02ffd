#include <fmt/format.h>

#include <algorithm>

#include "arena/arena_limits.hpp"
#include "base/assert.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "bucket/bucket_path.hpp"
#include "cli/commands.hpp"
#include "cli/memory_copy.hpp"
#include "cli/same_place.hpp"
#include "cli/signal_watch.hpp"
#include "cli/storage_read.hpp"
#include "cli/stored_step.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "cli/workplace.hpp"
#include "os/path.hpp"
#include "storage/checkpoint_name.hpp"
#include "storage/copy.hpp"
#include "storage/merge_timelines.hpp"
#include "storage/places.hpp"
#include "storage/run_catalog.hpp"
#include "storage/run_directory.hpp"

namespace ckpt::cli {

namespace {

// The files beside a checkpoint that say which steps a restore has abandoned.
struct History {
  std::shared_ptr<const format::Timelines> timelines;  // Null: lost, or the checkpoint lies alone.
  std::string lost;  // The reason, where it was there once: an abandoned step then looks good.
};

Task<History> history_beside(storage::Site run, format::RunId id) {
  History found;
  const auto marker = co_await storage::read_run_marker(run);
  if (!marker && marker.error().code() == Errc::not_found) co_return found;
  // In place of a damaged marker the history says whose it is.
  if (!marker && marker.error().code() != Errc::corruption) co_return fail(Error(marker.error()));
  if (marker && marker->run != id) co_return found;
  auto timelines = co_await storage::load_timelines(run, id);
  if (!timelines && timelines.error().code() != Errc::corruption)
    co_return fail(std::move(timelines).error());
  if (!timelines) {
    found.lost = timelines.error().text();
  } else if (timelines->history.empty()) {
    found.lost = "there is no history of timelines in " + run.directory();
  } else {
    found.timelines = std::make_shared<const format::Timelines>(std::move(timelines).value());
  }
  CKPT_ASSERT(found.lost.empty() != (found.timelines == nullptr));
  co_return found;
}

// Whether the target has no other checkpoint. The history of this one may be there: an earlier copy
// of it was interrupted. A damaged copy of it is in the way, but is no other.
Task<bool> is_alone_in(storage::Site target, const format::Manifest& manifest) {
  const auto read = co_await storage::read_run_catalog(target);
  if (!read && read.error().code() == Errc::not_found) co_return true;
  if (!read) co_return fail(Error(read.error()));
  const bool has_other =
      std::ranges::any_of(read->catalog.checkpoints, [&](const storage::Checkpoint& each) {
        return each.run != manifest.run || each.at != manifest.at;
      });
  const std::string own = storage::checkpoint_name(manifest.at.step);
  co_return !has_other &&
      std::ranges::all_of(read->catalog.rejected,
                          [&](const storage::Rejected& rejected) { return rejected.name == own; });
}

// A step that a restore has abandoned, and that was chosen by its name: where it lies alone it is
// the newest one. With the whole history a job would begin anew beside it, and delete it.
Status spare_alone(Workplace& workplace, const storage::Site& target, storage::CopyOrder& order) {
  if (!order.timelines || !format::is_abandoned(order.timelines->history, order.manifest->at))
    return {};
  CKPT_TRY(const bool is_alone, workplace.run(is_alone_in(target, *order.manifest)));
  if (!is_alone) return {};
  order.timelines = std::make_shared<const format::Timelines>(
      storage::without_abandoning(*order.timelines, order.manifest->at));
  return {};
}

// Without its history a step may only lie alone: somebody named it, and it is all there is.
Status check_lost(Workplace& workplace, const storage::Site& target,
                  const storage::CopyOrder& order, const std::string& lost) {
  if (lost.empty()) return {};
  CKPT_ASSERT(!order.timelines);
  CKPT_TRY(const bool is_alone, workplace.run(is_alone_in(target, *order.manifest)));
  if (is_alone) return {};
  return fail(Errc::corruption,
              fmt::format("copy step {} to {}: whether a restore has abandoned it is not known any "
                          "more ({}), and other steps lie there: name a directory of its own",
                          number(order.manifest->at.step), target.directory(), lost));
}

// The steps that live in the target, and that the copy's history abandons there. Errors:
// invalid_argument (those are all, and the copy is abandoned too: a job with that directory would
// begin anew, and delete them), io.
Result<std::vector<std::string>> newly_abandoned(Workplace& workplace, const storage::Site& target,
                                                 const storage::CopyOrder& order) {
  std::vector<std::string> abandoned;
  const format::StepId at = order.manifest->at;
  const auto read = workplace.run(storage::read_run_catalog(target));
  if (!read && read.error().code() != Errc::not_found) return fail(Error(read.error()));
  if (!read || !order.timelines) return abandoned;
  const auto there = workplace.run(storage::load_timelines(target, order.manifest->run));
  if (!there) return abandoned;  // The copy says why; so it does if the histories differ.
  const auto merged = storage::merge(*there, *order.timelines);
  if (!merged) return abandoned;
  bool has_living = !format::is_abandoned(merged->history, at);
  for (const storage::Checkpoint& each : read->catalog.checkpoints) {
    if (each.is_abandoned || each.run != order.manifest->run) continue;
    const bool lives_on = !format::is_abandoned(merged->history, each.at);
    has_living = has_living || lives_on;
    if (!lives_on) abandoned.push_back(each.name);
  }
  if (has_living || abandoned.empty()) return abandoned;
  return fail(Errc::invalid_argument,
              fmt::format("copy step {} to {}: a restore to an older step has abandoned it, and by "
                          "the same history {} there would be abandoned too: a job with that "
                          "directory would begin anew. Name another directory",
                          number(at.step), target.directory(), abandoned.back()));
}

// Reports whether the copy, and the original, are abandoned.
void tell_history(Workplace& workplace, const storage::Site& target,
                  const format::Manifest& manifest, bool was_abandoned, Outcome& outcome) {
  const auto timelines = workplace.run(storage::load_timelines(target, manifest.run));
  const bool is_abandoned =
      timelines ? format::is_abandoned(timelines->history, manifest.at) : was_abandoned;
  outcome.json["abandoned"] = is_abandoned;
  outcome.json["source_abandoned"] = was_abandoned;
  if (is_abandoned) {
    outcome.text +=
        "A restore to an older step has abandoned it: name the copy itself to load it.\n";
  } else if (was_abandoned) {
    outcome.text +=
        "A restore to an older step has abandoned the original. The copy lies alone, and is the "
        "newest step there: a job with this directory goes on from it.\n";
  }
}

Status check_places(const CopyOptions& given, const std::string& run) {
  for (const auto& [path, name] : {std::pair(given.from, "FROM"), std::pair(given.to, "TO")}) {
    if (path.empty())
      return fail(Errc::invalid_argument, fmt::format("copy: {} is empty: name a directory", name));
    CKPT_CHECK(bucket::check_path(path));
  }
  if (!is_same_place(run, given.to)) return {};
  return fail(Errc::invalid_argument,
              fmt::format("copy {} to {}: it lies there already", given.from, given.to));
}

// A run in a run, or in a checkpoint, is hidden from every command that takes the outer one. If
// there are two places, both count.
Status check_not_inside(Workplace& workplace, const StoredStep& step, const CopyOptions& given) {
  const auto refuse = [&](const char* where) {
    return fail(Errc::invalid_argument,
                fmt::format("copy {} to {}: that lies inside {} that is copied; name a directory "
                            "beside it",
                            given.from, given.to, where));
  };
  CKPT_TRY(const storage::Places places, storage::parse_places(given.from));
  std::vector<std::string> runs;
  if (places.second) runs = places.directories();
  std::vector<std::string> checkpoints = {step.directory};
  for (const storage::OpenStep& copy : step.copies)
    checkpoints.push_back(os::display(copy.place()));
  for (const std::string& checkpoint : checkpoints) {
    if (is_same_place(checkpoint, given.to) || is_below(given.to, checkpoint))
      return refuse("the checkpoint");
    runs.push_back(parent_of(checkpoint));
  }
  for (const std::string& run : runs) {
    const bool is_run = workplace.run(storage::read_run_marker(workplace.site(run))).has_value();
    if (is_run && is_below(given.to, run)) return refuse("the run");
  }
  return {};
}

// Each file takes whole pages of a Slot. For packed ones only the Slot is known, which is larger.
std::uint64_t bytes_of(const StoredStep& step) {
  std::uint64_t bytes = 0;
  if (step.memory) {
    for (std::uint32_t rank = 0; rank < step.shards->shard_count(); ++rank)
      bytes += step.shards->record(rank).bytes;
    return bytes;
  }
  const bool has_sizes = !is_packed(*step.manifest);
  for (const format::ManifestShard& shard : step.manifest->shards) {
    if (!has_sizes) bytes += shard.slot_bytes;
    if (has_sizes)
      for (const format::StoredFile& file : shard.files) bytes += align_up(file.bytes, page_bytes);
  }
  return bytes;
}

struct Moved {
  std::uint64_t copied_bytes = 0, found_bytes = 0;
};

Outcome copy_outcome(const StoredStep& step, const CopyOptions& given,
                     const storage::Copied& copied, const Moved& moved) {
  Outcome outcome;
  const std::string path = os::join(given.to, copied.name);
  outcome.json = {{"from", step.directory},          {"to", path},
                  {"job", step.manifest->job},       {"step", number(step.manifest->at.step)},
                  {"was_there", copied.was_there},   {"bytes_copied", moved.copied_bytes},
                  {"bytes_found", moved.found_bytes}};
  outcome.text = fmt::format(
      "{}: {} is {}", title_of(*step.manifest), printable(path),
      copied.was_there ? "there already, and whole"
                       : fmt::format("whole, {} copied", arena::human_bytes(moved.copied_bytes)));
  if (const std::uint64_t stored = storage::describe(*step.manifest, {}).bytes;
      !step.memory && !copied.was_there && is_packed(*step.manifest))
    outcome.text += fmt::format(" ({} as stored, compressed)", arena::human_bytes(stored));
  if (moved.found_bytes > 0)
    outcome.text += fmt::format(", {} found there", arena::human_bytes(moved.found_bytes));
  outcome.text += "\n";
  return outcome;
}

// Its job stores steps in its own places by itself.
Status check_not_its_own(const StoredStep& step, const CopyOptions& given) {
  const std::string& own = step.memory->directory();
  const bool is_inside = !own.empty() && is_below(given.to, own);
  if (own.empty() || (!is_inside && !is_same_place(own, given.to))) return {};
  if (is_inside)
    return fail(Errc::invalid_argument,
                fmt::format("copy {} to {}: that lies inside the job's own directory; name one "
                            "beside it",
                            given.from, given.to));
  return fail(Errc::invalid_argument,
              fmt::format("copy {} to {}: the job stores its steps there by itself "
                          "(save_storage_interval, or a save that waits for `durable`)",
                          given.from, given.to));
}

Result<Outcome> copy_memory(Workplace& workplace, const std::shared_ptr<StoredStep>& step,
                            const CopyOptions& given) {
  CKPT_CHECK(check_not_its_own(*step, given));
  MemoryCopyOrder order;
  order.attempt = random_from_system();
  const SignalWatch watch;
  order.is_cancelled = SignalWatch::has_signal;
  std::optional<Progress> progress(std::in_place, bytes_of(*step), !given.json);
  Moved moved;
  order.done = [&](std::uint64_t bytes) {
    moved.copied_bytes += bytes;
    progress->add(bytes);
  };
  const storage::Site target = workplace.site(given.to);
  const auto copied = workplace.run(copy_from_memory(target, step, std::move(order)));
  progress.reset();
  if (!copied) return fail(Error(copied.error()));
  Outcome outcome = copy_outcome(*step, given, *copied, moved);
  outcome.json["abandoned"] = outcome.json["source_abandoned"] = false;
  outcome.json["abandoned_there"] = Json::array();
  return outcome;
}

Result<Outcome> copy_step(Workplace& workplace, const std::shared_ptr<StoredStep>& step,
                          const CopyOptions& given) {
  const std::string run = parent_of(step->directory);
  CKPT_CHECK(check_places(given, run));
  CKPT_CHECK(check_not_inside(workplace, *step, given));
  storage::CopyOrder order;
  order.sources = step->copies;
  order.manifest = step->manifest;
  CKPT_TRY(const History history,
           workplace.run(history_beside(workplace.site(run), step->manifest->run)));
  order.timelines = history.timelines;
  const bool was_abandoned =
      order.timelines && format::is_abandoned(order.timelines->history, step->manifest->at);
  const storage::Site target = workplace.site(given.to);
  CKPT_CHECK(check_lost(workplace, target, order, history.lost));
  CKPT_CHECK(spare_alone(workplace, target, order));
  CKPT_TRY(const auto abandoned, newly_abandoned(workplace, target, order));
  order.attempt = random_from_system();
  const SignalWatch watch;
  order.is_cancelled = SignalWatch::has_signal;
  std::optional<Progress> progress(std::in_place, bytes_of(*step), !given.json);
  Moved moved;
  order.done = [&](std::uint64_t bytes, bool was_there) {
    (was_there ? moved.found_bytes : moved.copied_bytes) += bytes;
    progress->add(bytes);
  };
  auto copied = workplace.run(storage::copy_checkpoint(target, std::move(order)));
  progress.reset();
  if (!copied) {
    Error error = std::move(copied).error();
    if (error.code() == Errc::cancelled || error.code() == Errc::exhausted)
      error = Error(error.code(),
                    error.text() +
                        "; copied files stay, and `ckpt cp` goes on "
                        "from there",
                    error.cause());
    return fail(explain(workplace, *step, std::move(error)));
  }
  Outcome outcome = copy_outcome(*step, given, *copied, moved);
  tell_history(workplace, target, *step->manifest, was_abandoned, outcome);
  outcome.json["abandoned_there"] = abandoned;
  outcome.json["history_lost"] = history.lost;
  if (!history.lost.empty())
    outcome.text += fmt::format(
        "Whether a restore to an older step has abandoned the original is not known any more ({}). "
        "The copy lies alone, and is the newest step there: a job with this directory goes on from "
        "it.\n",
        printable(history.lost));
  for (const std::string& name : abandoned)
    outcome.text += fmt::format(
        "{} there is abandoned from now on: a restore to an older step "
        "has left it, as the copied history says.\n",
        printable(name));
  return outcome;
}

}  // namespace

Result<Outcome> copy(const CopyOptions& given) {
  if (is_memory_path(given.to))
    return fail(Errc::invalid_argument,
                fmt::format("copy to {}: a job's memory is filled by the job's own saves, and by "
                            "its restore of what lies in its directory: copy there",
                            given.to));
  CKPT_CHECK(refuse_two_places(given.to, "copy to"));
  CKPT_CHECK(check_places(given, {}));
  Workplace workplace;
  CKPT_CHECK(refuse_above_runs(workplace, "copy " + given.from, given.to));
  return use_stored_step(workplace, given.from, given.runtime_dir, [&](const auto& step) {
    return step->memory ? copy_memory(workplace, step, given) : copy_step(workplace, step, given);
  });
}

}  // namespace ckpt::cli
