#include "storage/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "storage/merge_timelines.hpp"
#include "storage/places.hpp"
#include "storage/run_catalog.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

// Explains why there is none to restore: the caller must not use anything else instead.
Error nothing_to_restore(const std::string& path, const Catalog& catalog) {
  std::string text = "no complete checkpoint in " + path;
  Errc code = Errc::not_found;
  for (const Checkpoint& checkpoint : catalog.checkpoints) {
    text += fmt::format("; {}: abandoned by a restore to an older step", checkpoint.name);
  }
  for (const Rejected& rejected : catalog.rejected) {
    text += fmt::format("; {}: {}", rejected.name, rejected.reason);
    // A reader that finds nothing starts from scratch, so damage must not count as nothing.
    if (is_damage(rejected)) code = Errc::corruption;
    if (is_unreadable(rejected) && code == Errc::not_found) code = Errc::io;
  }
  return Error(code, text);
}

// The steps of the run that come before the newest living one: only those would surely have been
// taken.
std::vector<std::string> passed_over_in(const Catalog& catalog) {
  std::vector<std::string> passed;
  const auto& all = catalog.checkpoints;
  const auto newest = std::find_if(all.rbegin(), all.rend(), [](const Checkpoint& checkpoint) {
    return !checkpoint.is_abandoned;
  });
  const Step step = newest == all.rend() ? Step{} : newest->at.step;
  for (auto it = all.rbegin(); it != newest; ++it)
    passed.push_back(fmt::format("{}: abandoned by a restore to an older step", it->name));
  for (const Rejected& rejected : catalog.rejected) {
    const auto parsed = parse_step_directory(rejected.name);
    const bool is_bad = is_damage(rejected) || is_unreadable(rejected);
    if (is_bad && parsed && parsed->step > step)
      passed.push_back(fmt::format("{}: {}", rejected.name, rejected.reason));
  }
  return passed;
}

void add_damaged(const FoundRun& run, Candidates& candidates) {
  for (const Rejected& rejected : run.read.catalog.rejected)
    if (is_damage(rejected) && parse_step_directory(rejected.name))
      candidates.damaged.push_back(os::beneath(run.directory, rejected.name));
}

// A failed read says nothing about the bytes, so that an older step is not taken instead. `others`:
// the same run in another place, which may have it.
Status refuse_older_than_unreadable(const std::string& path, const Catalog& catalog,
                                    const std::vector<const Catalog*>& others) {
  const auto newest_in = [](const Catalog& all) {
    Step newest{};
    for (const Checkpoint& each : all.checkpoints)
      if (!each.is_abandoned) newest = std::max(newest, each.at.step);
    return newest;
  };
  Step newest = newest_in(catalog);
  for (const Catalog* other : others) newest = std::max(newest, newest_in(*other));
  for (const Rejected& rejected : catalog.rejected) {
    const auto parsed = parse_step_directory(rejected.name);
    if (!is_unreadable(rejected) || !parsed || parsed->step <= newest) continue;
    return fail(Errc::io,
                fmt::format("look for a checkpoint in {}: {} is newer than all that could be "
                            "read, and may be good: mend that, or name the checkpoint that you "
                            "want instead: {}",
                            path, rejected.name, rejected.reason));
  }
  return {};
}

std::vector<Checkpoint> living(const Catalog& catalog) {
  std::vector<Checkpoint> all;
  for (auto it = catalog.checkpoints.rbegin(); it != catalog.checkpoints.rend(); ++it)
    if (!it->is_abandoned) all.push_back(*it);
  return all;
}

bool is_run(const RunCatalog& read) {
  return read.run || !read.history_problem.empty() || !read.catalog.checkpoints.empty() ||
         !read.catalog.rejected.empty();
}

// Without the history, an abandoned step may look like the newest.
bool has_lost_history(const RunCatalog& read) {
  return !read.history_problem.empty() && !read.catalog.checkpoints.empty();
}
const char* trouble_of(const RunCatalog& read) {
  return read.is_history_unreadable ? "cannot be read" : "is lost";
}
Error lost_history(const std::string& path, const RunCatalog& read) {
  return Error(
      read.is_history_unreadable ? Errc::io : Errc::corruption,
      fmt::format("look for a checkpoint in {}: the history of its timelines {} ({}): {}name the "
                  "checkpoint itself",
                  path, trouble_of(read), read.history_problem,
                  read.is_history_unreadable ? "make it readable, or " : ""));
}

Site elsewhere(const Site& site, std::string directory) {
  return Site(site.files(), site.clock(), std::move(directory), site.compute());
}

struct Below {
  FoundRuns found;
  std::size_t visited = 0;
  bool goes_into_runs = false;
};

// Hidden directories are somebody's own business.
Task<void> look_below(Site site, std::string shown, int depth, Below& below) {
  const std::string& path = site.directory();
  CKPT_CO_TRY(const auto entries, co_await site.files().list(path));
  for (const os::DirectoryEntry& entry : entries) {
    if (entry.kind != os::EntryKind::directory || entry.name.starts_with('.')) continue;
    if (parse_step_directory(entry.name)) continue;  // No run lies in a checkpoint.
    if (++below.visited > search_directories_max)
      co_return fail(Errc::exhausted,
                     fmt::format("look for a checkpoint in {}: there are more than {} directories",
                                 os::display(path), search_directories_max));
    const std::string directory = os::join(path, entry.name);
    const std::string name = shown.empty() ? entry.name : os::join(shown, entry.name);
    const Site inner = elsewhere(site, directory);
    auto read = co_await read_run_catalog(inner);
    if (!read) {
      below.found.unreadable.push_back(fmt::format("{}: {}", name, read.error().message()));
      below.found.unreadable_below.push_back(directory);
      continue;
    }
    const bool is_one = is_run(*read);
    if (is_one) below.found.runs.push_back({name, directory, std::move(*read)});
    if ((is_one && !below.goes_into_runs) || depth == search_depth_max) continue;
    CKPT_CO_CHECK(co_await look_below(inner, name, depth + 1, below));
  }
  co_return Status();
}

// The candidates of a parent: of all runs together, the one that was published last comes first.
Result<Candidates> among_runs(const std::string& path, const FoundRuns& found) {
  Candidates candidates;
  candidates.passed_over = found.unreadable;
  std::vector<std::tuple<std::uint64_t, Step, std::string>> all;
  for (const FoundRun& run : found.runs) {
    if (has_lost_history(run.read)) {
      candidates.passed_over.push_back(fmt::format("{}: the history of its timelines {}: {}",
                                                   run.name, trouble_of(run.read),
                                                   run.read.history_problem));
      continue;
    }
    CKPT_CHECK(refuse_older_than_unreadable(run.directory, run.read.catalog, {}));
    for (const std::string& passed : passed_over_in(run.read.catalog))
      candidates.passed_over.push_back(os::join(run.name, passed));
    for (const Checkpoint& checkpoint : living(run.read.catalog))
      all.emplace_back(checkpoint.created_unix_seconds, checkpoint.at.step,
                       os::join(run.directory, checkpoint.name));
  }
  std::ranges::sort(all, std::greater<>());
  for (auto& [created, step, directory] : all)
    candidates.directories.push_back(std::move(directory));
  for (const FoundRun& run : found.runs) {
    const bool is_of_first = !candidates.directories.empty() &&
                             candidates.directories.front().starts_with(run.directory + "/");
    if (is_of_first && !has_lost_history(run.read)) add_damaged(run, candidates);
  }
  if (!candidates.directories.empty()) return candidates;
  const std::string passed = describe_passed_over(candidates.passed_over);
  return fail(passed.empty() ? Errc::not_found : Errc::corruption,
              fmt::format("no complete checkpoint in {}{}", path,
                          passed.empty() ? ", nor in directories below it" : "; " + passed));
}

// Either place may know alone which steps were abandoned: the first one may be new, and the second
// one behind.
Task<void> mark_by_both(Site site, std::vector<FoundRun>& runs) {
  if (runs.size() != 2) co_return Status();
  if (!runs[0].read.run || !runs[1].read.run) co_return Status();
  const format::RunId run = *runs[0].read.run;
  if (run != *runs[1].read.run) {
    co_return fail(Errc::invalid_argument,
                   fmt::format("look for a checkpoint: {} and {} hold different runs",
                               runs[0].directory, runs[1].directory));
  }
  CKPT_CO_TRY(const format::Timelines one,
              co_await load_timelines(elsewhere(site, runs[0].directory), run));
  CKPT_CO_TRY(const format::Timelines other,
              co_await load_timelines(elsewhere(site, runs[1].directory), run));
  CKPT_CO_TRY(const format::Timelines both, merge(one, other));
  for (FoundRun& found : runs) {
    for (Checkpoint& checkpoint : found.read.catalog.checkpoints)
      checkpoint.is_abandoned =
          checkpoint.run == run && format::is_abandoned(both.history, checkpoint.at);
  }
  co_return Status();
}

// A place that cannot be read is named, and the other one is used.
Task<FoundRuns> find_in_places(Site site, Places places) {
  FoundRuns found;
  std::optional<Error> first_error;
  for (const std::string& directory : places.directories()) {
    auto read = co_await read_run_catalog(elsewhere(site, directory));
    if (read) {
      found.runs.push_back({"", directory, std::move(*read)});
    } else {
      if (!first_error) first_error.emplace(read.error());
      if (read.error().code() != Errc::not_found) found.failure.emplace(read.error());
      found.unreadable.push_back(fmt::format("{}: {}", directory, read.error().message()));
    }
  }
  if (found.runs.empty() && found.failure) first_error = found.failure;
  if (found.runs.empty()) co_return fail(std::move(*first_error).context("look for a checkpoint"));
  const auto marked = co_await mark_by_both(site, found.runs);
  if (marked) co_return found;
  if (marked.error().code() == Errc::invalid_argument) co_return fail(Error(marked.error()));
  for (FoundRun& run : found.runs) note_problem(run.read, marked.error());
  co_return found;
}

// Orders both places together: the newest step first, and of one step the nearest place.
Result<Candidates> among_places(const std::string& path, FoundRuns found) {
  Candidates candidates;
  candidates.passed_over = std::move(found.unreadable);
  std::vector<std::tuple<format::StepId, std::size_t, std::string>> all;
  Catalog together;
  std::vector<const Catalog*> catalogs;
  for (const FoundRun& run : found.runs) catalogs.push_back(&run.read.catalog);
  for (std::size_t place = 0; place < found.runs.size(); ++place) {
    const FoundRun& run = found.runs[place];
    if (has_lost_history(run.read)) return fail(lost_history(path, run.read));
    CKPT_CHECK(refuse_older_than_unreadable(run.directory, run.read.catalog, catalogs));
    for (const std::string& passed : passed_over_in(run.read.catalog))
      candidates.passed_over.push_back(os::join(run.directory, passed));
    add_damaged(run, candidates);
    const Catalog& catalog = run.read.catalog;
    for (const Checkpoint& checkpoint : living(catalog))
      all.emplace_back(checkpoint.at, found.runs.size() - place,
                       os::beneath(run.directory, checkpoint.name));
    together.checkpoints.insert(together.checkpoints.end(), catalog.checkpoints.begin(),
                                catalog.checkpoints.end());
    together.rejected.insert(together.rejected.end(), catalog.rejected.begin(),
                             catalog.rejected.end());
  }
  if (all.empty() && found.failure)
    return fail(std::move(*found.failure).context("look for a checkpoint"));
  if (all.empty()) return fail(nothing_to_restore(path, together));
  std::ranges::sort(all, std::greater());
  for (std::size_t index = 0; index < all.size(); ++index) {
    const bool is_copy = index > 0 && std::get<0>(all[index]) == std::get<0>(all[index - 1]);
    if (is_copy) candidates.copies.insert(index);
    candidates.directories.push_back(std::get<2>(all[index]));
  }
  return candidates;
}

// Whether it is no newer than `best`, or a restore has abandoned it, as far as its manifest says.
Task<bool> is_outdated(Site site, std::string directory, Step best) {
  CKPT_CO_TRY(const auto manifest, co_await read_manifest_at(site.files(), directory));
  if (manifest->at.step <= best) co_return true;
  const std::string path = os::display(directory);
  const Site run = elsewhere(site, path.substr(0, path.rfind('/')));
  CKPT_CO_TRY(const auto timelines, co_await load_timelines(run, manifest->run));
  co_return format::is_abandoned(timelines.history, manifest->at);
}

}  // namespace

std::string describe_passed_over(const std::vector<std::string>& passed_over) {
  constexpr std::size_t shown_max = 5;
  if (passed_over.empty()) return {};
  std::string text = "passed over: ";
  for (std::size_t index = 0; index < std::min(passed_over.size(), shown_max); ++index)
    text += (index > 0 ? "; " : "") + passed_over[index];
  if (passed_over.size() > shown_max)
    text += fmt::format("; and {} more", passed_over.size() - shown_max);
  return text;
}

Task<FoundRuns> find_runs(Site site) {
  CKPT_CO_TRY(Places places, parse_places(site.directory()));
  if (places.second) {
    auto both = co_await find_in_places(site, std::move(places));
    co_return both;
  }
  auto read = co_await read_run_catalog(site);
  if (!read) co_return fail(std::move(read).error().context("look for a checkpoint"));
  Below below;
  if (is_run(*read)) {
    below.found.runs.push_back({"", site.directory(), std::move(*read)});
  } else {
    CKPT_CO_CHECK(co_await look_below(site, "", 1, below));
  }
  co_return std::move(below.found);
}

Task<FoundRuns> find_runs_everywhere(Site site) {
  CKPT_CO_TRY(const Places places, parse_places(site.directory()));
  if (places.second) {
    auto both = co_await find_runs(site);
    co_return both;
  }
  auto read = co_await read_run_catalog(site);
  if (!read) co_return fail(std::move(read).error().context("look for a checkpoint"));
  const bool is_one = is_run(*read);
  Below below;
  below.goes_into_runs = true;
  if (is_one) below.found.runs.push_back({"", site.directory(), std::move(*read)});
  Status looked = co_await look_below(site, "", 1, below);
  if (!looked && !is_one) co_return fail(std::move(looked).error());
  co_return std::move(below.found);  // A run that was named is there in any case.
}

Task<Candidates> find_candidates(Site site) {
  const std::string& path = site.directory();
  if (path.starts_with("memory:"))  // Else a trainer finds no such directory, and begins anew.
    co_return fail(Errc::invalid_argument,
                   fmt::format("look for a checkpoint in {}: only `ckpt` reads a step in memory by "
                               "such a path; a job restores its own without a path",
                               path));
  Candidates candidates;
  CKPT_CO_TRY(Places places, parse_places(path));
  if (places.second) {
    CKPT_CO_TRY(FoundRuns both, co_await find_in_places(site, std::move(places)));
    co_return among_places(path, std::move(both));
  }
  const auto itself = co_await read_manifest(site, ".");
  if (itself) {
    candidates.directories = {path};
    co_return candidates;
  }
  if (itself.error().code() != Errc::not_found) co_return fail(itself.error());
  CKPT_CO_TRY(const FoundRuns found, co_await find_runs(site));
  const bool is_one = found.runs.size() == 1 && found.runs.front().name.empty();
  if (!is_one) co_return among_runs(path, found);
  const RunCatalog& read = found.runs.front().read;
  if (has_lost_history(read)) co_return fail(lost_history(path, read));
  CKPT_CO_CHECK(refuse_older_than_unreadable(path, read.catalog, {}));
  for (const Checkpoint& checkpoint : living(read.catalog))
    candidates.directories.push_back(site.at(checkpoint.name));
  if (candidates.directories.empty()) co_return fail(nothing_to_restore(path, read.catalog));
  candidates.passed_over = passed_over_in(read.catalog);
  add_damaged(found.runs.front(), candidates);
  co_return candidates;
}

Task<bool> has_newer_damage(Site site, Candidates found) {
  const auto best = parse_step_directory(os::file_name(found.directories.front()));
  for (const std::string& directory : found.damaged) {
    const auto parsed = parse_step_directory(os::file_name(directory));
    if (!best || !parsed || parsed->step <= best->step) continue;
    const auto outdated = co_await is_outdated(site, directory, best->step);
    if (!outdated || !*outdated) co_return true;
  }
  co_return false;
}

}  // namespace ckpt::storage
