#include <fmt/format.h>

#include <algorithm>

#include "base/random.hpp"
#include "bucket/bucket_path.hpp"
#include "cli/commands.hpp"
#include "cli/memory_step.hpp"
#include "cli/signal_watch.hpp"
#include "cli/storage_read.hpp"
#include "cli/table.hpp"
#include "storage/checkpoint_name.hpp"
#include "storage/in_the_way.hpp"
#include "storage/member_reader.hpp"
#include "storage/place_check.hpp"
#include "storage/repair.hpp"
#include "storage/run_catalog.hpp"

namespace ckpt::cli {

namespace {

bool is_stored_step(Workplace& workplace, const std::string& path) {
  if (storage::step_named(name_of(path))) return true;
  const auto has_manifest = workplace.run(storage::is_checkpoint(workplace.site(path)));
  return has_manifest && *has_manifest;
}

struct ToRepair {
  std::string name;     // In the directory; ".": it is the checkpoint itself.
  std::string problem;  // Why nothing is done about it; empty: something may be.
};

constexpr const char* by_hand = ": put it in its place by hand";

std::string why_not_replaced(const storage::Rejected& rejected) {
  if (storage::is_unreadable(rejected))
    return "nothing is replaced, since it could not be read, and may be good: " + rejected.reason;
  if (!rejected.is_misplaced) return {};
  return rejected.reason + by_hand;
}

// For a checkpoint that was named itself.
std::string problem_of_named(Workplace& workplace, const std::string& path) {
  const std::string name = name_of(path);
  const auto manifest = workplace.run(storage::read_manifest(workplace.site(path), "."));
  if (!manifest || !storage::step_named(name)) return {};
  const std::string reason = storage::misplaced_reason(name, (*manifest)->at.step);
  return reason.empty() ? reason : reason + by_hand;
}

// All that may be checkpoints, also those that lack files.
Result<std::vector<ToRepair>> checkpoints_in(Workplace& workplace, const std::string& path) {
  if (is_stored_step(workplace, path))
    return std::vector<ToRepair>{{".", problem_of_named(workplace, path)}};
  CKPT_TRY(const auto catalog, read_directory(workplace, path));
  std::vector<ToRepair> found;
  for (const storage::Checkpoint& each : catalog.checkpoints) found.push_back({each.name, {}});
  for (const storage::Rejected& each : catalog.rejected)
    if (storage::step_named(each.name) &&
        (storage::is_damage(each) || storage::is_unreadable(each)))
      found.push_back({each.name, why_not_replaced(each)});
  std::ranges::sort(found, {}, &ToRepair::name);
  return found;
}

// The copy of the checkpoint that `from` is, or has.
Result<storage::StepIn> source_of(Workplace& workplace, const std::string& from,
                                  const format::Manifest& wanted) {
  const storage::Site site = workplace.site(from);
  if (is_stored_step(workplace, from)) return storage::StepIn{site, "."};
  const storage::Checkpoint ours = storage::describe(wanted, {});
  CKPT_TRY(const auto read, workplace.run(storage::read_run_catalog(site)));
  for (const storage::Checkpoint& each : read.catalog.checkpoints) {
    if (each.run == ours.run && each.at == ours.at && each.digests == ours.digests)
      return storage::StepIn{site, each.name};
  }
  return fail(Errc::not_found, fmt::format("{} has no whole copy of step {} of this run", from,
                                           number(ours.at.step)));
}

Error with_repair_advice(Workplace& workplace, const Error& error, const std::string& shown,
                         const std::string& from) {
  if (storage::is_unreadable(error.code())) return error;
  const std::string name(os::file_name(shown));
  const std::string source = is_stored_step(workplace, from) ? from : os::join(from, name);
  const std::size_t slash = shown.rfind('/');
  const std::string moving = storage::how_to_move_away(error, shown, bucket::is_bucket_path(shown));
  std::string way_out = "it may be good: repair it with the version of libckpt that wrote it";
  if (!moving.empty()) {
    way_out =
        fmt::format("manifests are not repaired: {}, then `ckpt cp {} {}` brings it back", moving,
                    source, slash == std::string::npos ? "." : shown.substr(0, slash));
  }
  return Error(error.code(), fmt::format("{}; {}", error.text(), way_out), error.cause());
}

Result<std::vector<std::string>> repair_one(Workplace& workplace, const storage::StepIn& damaged,
                                            const std::string& shown, const std::string& from) {
  const auto manifest = workplace.run(storage::read_manifest(damaged.site, damaged.name));
  if (!manifest) return fail(with_repair_advice(workplace, manifest.error(), shown, from));
  storage::RepairOrder order;
  CKPT_TRY(auto copy, source_of(workplace, from, **manifest));
  order.attempt = random_from_system();
  order.is_cancelled = SignalWatch::has_signal;
  return workplace.run(storage::repair_checkpoint(damaged, std::move(copy), std::move(order)));
}

bool needs_repair(Workplace& workplace, const storage::StepIn& step) {
  const auto report = workplace.run(storage::verify_checkpoint(step.site, step.name));
  return !report || !report->is_good();
}

}  // namespace

Result<Outcome> repair(const RepairOptions& given) {
  const std::string path = without_slash(given.path), from = without_slash(given.from);
  for (const std::string& place : {path, from}) {
    CKPT_CHECK(refuse_memory_path(place, "repair"));
    CKPT_CHECK(refuse_two_places(place, "repair"));
  }
  if (from.empty())
    return fail(Errc::invalid_argument,
                fmt::format("repair {}: name the other copy with --from", path));
  CKPT_CHECK(bucket::check_path(path));
  CKPT_CHECK(bucket::check_path(from));
  Workplace workplace;
  const SignalWatch watch;
  CKPT_TRY(const auto checkpoints, checkpoints_in(workplace, path));
  Json repaired = Json::array();
  std::string text;
  for (const auto& [name, problem] : checkpoints) {
    const storage::StepIn step{workplace.site(path), name};
    if (problem.empty() && !needs_repair(workplace, step)) continue;
    const std::string shown = name == "." ? path : os::join(path, name);
    const auto names = problem.empty()
                           ? repair_one(workplace, step, shown, from)
                           : Result<std::vector<std::string>>(fail(Errc::unavailable, problem));
    if (!names && names.error().code() == Errc::cancelled) return fail(Error(names.error()));
    repaired.push_back({{"directory", shown},
                        {"files", names ? *names : std::vector<std::string>()},
                        {"problem", names ? Json() : Json(names.error().text())}});
    text += names ? fmt::format("repaired {}: {}\n", printable(shown), fmt::join(*names, ", "))
                  : fmt::format("left as it is {}: {}\n", printable(shown),
                                printable(names.error().message()));
  }
  CKPT_TRY(Outcome outcome, verify(path, false));
  outcome.json["repaired"] = std::move(repaired);
  outcome.text = text + outcome.text;
  return outcome;
}

}  // namespace ckpt::cli
