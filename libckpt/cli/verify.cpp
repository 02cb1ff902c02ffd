#include <fmt/format.h>

#include "arena/arena_limits.hpp"
#include "bucket/bucket_path.hpp"
#include "cli/commands.hpp"
#include "cli/memory_step.hpp"
#include "cli/storage_read.hpp"
#include "cli/table.hpp"
#include "storage/checkpoint_name.hpp"
#include "storage/member_reader.hpp"
#include "storage/place_check.hpp"
#include "storage/places.hpp"
#include "storage/run_catalog.hpp"
#include "storage/run_check.hpp"

namespace ckpt::cli {

namespace {

struct Verdict {
  bool is_good = false;
  Json json;
  std::string text;
};

// Files that may not be read, or cannot, may be good.
std::string_view word_for(bool is_good, bool is_unreadable) {
  return is_good ? "good   " : is_unreadable ? "UNREADABLE" : "DAMAGED";
}

Verdict not_read(const std::string& directory, const Error& error) {
  const bool is_unreadable = storage::may_be_good(error.code());
  Verdict verdict;
  verdict.json = {{"directory", directory},      {"good", false},
                  {"unreadable", is_unreadable}, {"problem", error.text()},
                  {"files", Json::array()},      {"foreign", Json::array()}};
  verdict.text = fmt::format("{} {}: {}\n", word_for(false, is_unreadable), printable(directory),
                             printable(error.message()));
  return verdict;
}

Verdict judge(const std::string& directory, const storage::CheckpointReport& report) {
  Verdict verdict;
  verdict.is_good = report.is_good();
  verdict.json = {{"directory", directory},
                  {"good", verdict.is_good},
                  {"unreadable", !verdict.is_good && !report.is_damaged()},
                  {"job", report.manifest->job},
                  {"run", to_hex(report.manifest->run)},
                  {"timeline", report.manifest->at.timeline},
                  {"step", number(report.manifest->at.step)},
                  {"world_size", report.manifest->world_size},
                  {"problem", nullptr},
                  {"missing_pieces", nullptr},
                  {"files", Json::array()},
                  {"foreign", report.foreign}};
  std::uint64_t bytes = 0;
  std::string problems;
  for (const storage::FileReport& file : report.files) {
    bytes += file.bytes;
    const bool is_good = file.problem.empty();
    Json reported = {{"name", file.name},
                     {"bytes", file.bytes},
                     {"good", is_good},
                     {"unreadable", file.is_unreadable}};
    reported["problem"] = is_good ? Json() : Json(file.problem);
    verdict.json["files"].push_back(std::move(reported));
    if (!is_good)
      problems += fmt::format("  {}: {}\n", printable(file.name), printable(file.problem));
  }
  verdict.text = fmt::format(
      "{} {}: {}, {}, {}\n", word_for(verdict.is_good, !report.is_damaged()), printable(directory),
      counted(std::to_string(report.manifest->world_size), "rank"),
      counted(std::to_string(report.files.size()), "file"), arena::human_bytes(bytes));
  verdict.text += problems;
  for (const std::string& name : report.foreign) {
    verdict.text += fmt::format("  {}: not of the checkpoint, ignored\n", printable(name));
  }
  return verdict;
}

// All bytes are there that were saved, and ranks may leave parts out on purpose: the step is good.
void add_missing(Verdict& verdict, const Result<gather::LookedThrough>& looked) {
  if (!looked || looked->missing.is_left_out) {
    verdict.text +=
        fmt::format("  not looked through for parts that no rank has saved: {}\n",
                    looked ? "there are too many parts" : printable(looked.error().message()));
    return;
  }
  const gather::Missing& missing = looked->missing;
  if (missing.tensors == 0) return;
  verdict.json["missing_pieces"] = {
      {"tensors", missing.tensors}, {"tensor", missing.tensor}, {"what", missing.what}};
  if (!missing.contradiction.empty())
    verdict.json["missing_pieces"]["contradiction"] = missing.contradiction;
  verdict.text += fmt::format("  stored {}\n", printable(gather::in_words(missing)));
}

Verdict verify_one(Workplace& workplace, const std::string& directory, const storage::Site& site,
                   const std::string& name) {
  const auto report = workplace.run(storage::verify_checkpoint(site, name));
  if (!report) return not_read(directory, report.error());
  Verdict verdict = judge(directory, *report);
  if (verdict.is_good) add_missing(verdict, look_through(workplace, site, name));
  return verdict;
}

// A whole step that no restore takes is easily lost: nothing else says so before it is deleted.
void add_history(Verdict& verdict, const std::string& directory, bool is_abandoned) {
  verdict.json["abandoned"] = is_abandoned;
  if (!is_abandoned || !verdict.is_good) return;
  verdict.text += fmt::format(
      "  whole, but abandoned by a restore to an older step: the job does not take it any more, "
      "and the next deletion takes it first. To keep it: `ckpt cp {} ELSEWHERE`, which is best a "
      "directory of its own; then load the copy by its path\n",
      printable(directory));
}

// A checkpoint that was named itself.
Verdict verify_named(Workplace& workplace, const std::string& path) {
  const storage::Site site = workplace.site(path);
  Verdict verdict = verify_one(workplace, path, site, ".");
  const auto manifest = workplace.run(storage::read_manifest(site, "."));
  if (!manifest) return verdict;
  const std::string name = name_of(path);
  const std::string reason = storage::misplaced_reason(name, (*manifest)->at.step);
  if (verdict.is_good && storage::step_named(name) && !reason.empty()) {
    verdict.is_good = false;
    verdict.json["good"] = false;
    verdict.json["misplaced"] = true;
    verdict.json["problem"] = reason;
    verdict.text =
        fmt::format("MISPLACED {}: {}; its files are whole\n", printable(path), printable(reason));
  }
  add_history(verdict, path, is_abandoned_at(workplace, path, **manifest));
  return verdict;
}

void add_verdict(Outcome& outcome, const Verdict& verdict) {
  outcome.json["checkpoints"].push_back(verdict.json);
  outcome.text += verdict.text;
  outcome.is_trouble = outcome.is_trouble || !verdict.is_good;
}

// How often a directory is listed again if its checkpoints are removed before they are read.
constexpr int rounds_max = 3;

// Leaves out checkpoints that a running job has removed meanwhile.
Status add_all(Workplace& workplace, const std::string& path,
               const std::vector<storage::Checkpoint>& checkpoints, Outcome& outcome) {
  const storage::Site site = workplace.site(path);
  for (const storage::Checkpoint& checkpoint : checkpoints) {
    const std::string directory = os::join(path, checkpoint.name);
    Verdict verdict = verify_one(workplace, directory, site, checkpoint.name);
    add_history(verdict, directory, checkpoint.is_abandoned);
    if (!verdict.is_good) {
      CKPT_TRY(const bool is_gone, workplace.run(storage::has_gone(site, checkpoint)));
      if (is_gone) continue;
    }
    add_verdict(outcome, verdict);
  }
  return {};
}

// Returns the catalog whose checkpoints were added.
Result<storage::Catalog> add_listed(Workplace& workplace, const std::string& path, bool newest_only,
                                    Outcome& outcome) {
  for (int round = 1;; ++round) {
    CKPT_TRY(auto catalog, read_directory(workplace, path));
    const storage::Checkpoint* newest = storage::newest_living(catalog);
    if (newest_only && newest != nullptr)
      catalog.checkpoints = std::vector<storage::Checkpoint>{*newest};
    CKPT_CHECK(add_all(workplace, path, catalog.checkpoints, outcome));
    const bool are_gone = !catalog.checkpoints.empty() && outcome.json["checkpoints"].empty();
    if (!are_gone || round == rounds_max) return catalog;
  }
}

// Returns true if `path` is one checkpoint, or was meant to be one.
Result<bool> is_checkpoint(Workplace& workplace, const std::string& path) {
  const auto there = workplace.run(storage::check_there(workplace.site(path)));
  if (!there) {
    if (there.error().cause() == std::errc::not_a_directory)
      return fail(Errc::invalid_argument,
                  fmt::format("verify {}: it is a file; name the checkpoint (step-...) or the "
                              "directory that it lies in",
                              path));
    if (there.error().code() != Errc::not_found) return fail(Error(there.error()));
    return fail(Errc::not_found, fmt::format("verify {}: there is no such directory", path));
  }
  if (storage::step_named(name_of(path))) return true;
  const auto has_manifest = workplace.run(storage::is_checkpoint(workplace.site(path)));
  return has_manifest && *has_manifest;
}

Result<Outcome> verify_place(Workplace& workplace, const std::string& path, bool newest_only) {
  Outcome outcome;
  outcome.json["path"] = path;
  outcome.json["good"] = false;
  outcome.json["checkpoints"] = Json::array();
  outcome.json["rejected"] = Json::array();
  CKPT_TRY(const bool is_one, is_checkpoint(workplace, path));
  if (is_one) {
    const Verdict verdict = verify_named(workplace, path);
    if (!verdict.is_good) CKPT_CHECK(is_checkpoint(workplace, path));  // It may have been removed.
    add_verdict(outcome, verdict);
  } else {
    CKPT_TRY(const auto catalog, add_listed(workplace, path, newest_only, outcome));
    // With --newest, the newest whole checkpoint counts.
    if (!newest_only) {
      outcome.json["rejected"] = to_json(catalog.rejected);
      outcome.text += describe(catalog.rejected, path);
      if (has_trouble(catalog.rejected)) outcome.is_trouble = true;
    }
    if (outcome.json["checkpoints"].empty()) {
      outcome.is_trouble = true;
      outcome.text += fmt::format("{}: no whole checkpoint lies there.\n", printable(path));
    }
  }
  outcome.json["good"] = !outcome.is_trouble;
  return outcome;
}

// Each place, or run, by itself: the copies of a step lie in other files.
Outcome verify_all(Workplace& workplace, const char* key,
                   const std::vector<std::string>& directories, bool newest_only) {
  Outcome outcome;
  outcome.json[key] = Json::array();
  for (const std::string& directory : directories) {
    auto one = verify_place(workplace, directory, newest_only);
    outcome.is_trouble = outcome.is_trouble || !one || one->is_trouble;
    const std::string error = one ? "" : one.error().message();
    outcome.json[key].push_back(one ? one->json
                                    : Json{{"path", directory}, {"good", false}, {"error", error}});
    outcome.text +=
        one ? one->text : fmt::format("{}: {}\n", printable(directory), printable(error));
  }
  outcome.json["good"] = !outcome.is_trouble;
  return outcome;
}

}  // namespace

Result<Outcome> verify(const std::string& given, bool newest_only) {
  CKPT_CHECK(refuse_memory_path(given, "verify"));
  Workplace workplace;
  CKPT_TRY(const storage::Places places, storage::parse_places(given));
  for (const std::string& place : places.directories()) CKPT_CHECK(bucket::check_path(place));
  if (places.second) return verify_all(workplace, "places", places.directories(), newest_only);
  const std::string path = without_slash(given);
  CKPT_TRY(const bool is_one, is_one_checkpoint(workplace, path));
  const std::vector<std::string> runs =
      is_one ? std::vector<std::string>() : runs_at(workplace, path);
  return runs.empty() ? verify_place(workplace, path, newest_only)
                      : verify_all(workplace, "runs", runs, newest_only);
}

}  // namespace ckpt::cli
