#include "cli/stored_step.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "cli/storage_read.hpp"
#include "cli/table.hpp"
#include "os/path.hpp"
#include "storage/catalog.hpp"
#include "storage/checkpoint_name.hpp"
#include "storage/place_check.hpp"
#include "storage/places.hpp"
#include "storage/search.hpp"

namespace ckpt::cli {

namespace {

Task<void> check_path(storage::Site site) {
  const std::string& path = site.directory();
  const auto there = co_await storage::check_there(site);
  if (there) co_return Status();
  if (there.error().cause() == std::errc::not_a_directory)
    co_return fail(Errc::invalid_argument,
                   fmt::format("look for a checkpoint in {}: it is a file, and a checkpoint is a "
                               "directory (step-...)",
                               path));
  if (there.error().code() != Errc::not_found) co_return fail(Error(there.error()));
  co_return fail(Errc::not_found,
                 fmt::format("look for a checkpoint in {}: there is no such directory; name one "
                             "checkpoint (step-...), or the directory that the job was given as "
                             "`dir`",
                             path));
}

// Opens copies of one save together; the nearest is first.
Task<std::shared_ptr<StoredStep>> open_copies(storage::SaveCopies copies) {
  CKPT_ASSERT(!copies.empty());
  const auto step = std::make_shared<StoredStep>();
  step->directory = os::display(copies.front().place());
  step->manifest = copies.front().manifest();
  step->files = std::make_unique<gather::StoredShards>(copies);
  step->copies = std::move(copies);
  CKPT_CO_TRY(step->shards, co_await gather::KnownShards::read(*step->files));
  step->tensors = gather::list_tensors(*step->shards);
  co_return step;
}

Task<std::shared_ptr<StoredStep>> open_alone(storage::Site place) {
  storage::SaveCopies one;
  CKPT_CO_TRY(auto step, co_await storage::OpenStep::at(std::move(place)));
  one.push_back(std::move(step));
  auto opened = co_await open_copies(std::move(one));
  co_return opened;
}

Task<std::shared_ptr<StoredStep>> open_in_memory(Clock& clock, std::string path,
                                                 std::string runtime_dir) {
  const auto step = std::make_shared<StoredStep>();
  CKPT_CO_TRY(MemoryPath parsed, parse_memory_path(path));
  const std::string job = parsed.job;
  CKPT_CO_TRY(step->memory,
              co_await MemoryStep::open(clock, std::move(runtime_dir), std::move(parsed)));
  step->manifest = step->memory->manifest();
  step->directory =
      fmt::format("{}{}/{}", memory_prefix, job, storage::checkpoint_name(step->manifest->at.step));
  CKPT_CO_TRY(step->shards, co_await gather::KnownShards::read(*step->memory));
  step->tensors = gather::list_tensors(*step->shards);
  co_return step;
}

// The step of a directory of this name; none: it has another one.
std::optional<Step> step_in(const std::string& directory) {
  return storage::step_named(os::file_name(directory));
}

// Each by itself, and of each step all copies together behind them, with what is left of damaged
// ones: they may be damaged in different chunks.
std::vector<StepCandidate> candidates_of(const storage::Site& site,
                                         const storage::Candidates& found) {
  const auto place_of = [&](const std::string& directory) {
    return storage::Site(site.files(), site.clock(), directory, site.compute());
  };
  std::vector<StepCandidate> all;
  StepCandidate together;
  for (std::size_t index = 0; index < found.directories.size(); ++index) {
    const std::string& directory = found.directories[index];
    all.push_back({{place_of(directory)}, together.rank});
    together.places.push_back(place_of(directory));
    if (found.copies.contains(index + 1)) continue;
    for (const std::string& damaged : found.damaged)
      if (step_in(damaged) == step_in(directory)) together.places.push_back(place_of(damaged));
    if (together.places.size() > 1) all.push_back(together);
    together = {{}, together.rank + 1};
  }
  return all;
}

// Opens what the directories have of one save. Errors: corruption (only one of them has it), io.
Task<std::shared_ptr<StoredStep>> open_together(StepCandidate candidate) {
  storage::SaveCopies copies;
  std::vector<Error> errors;
  for (const storage::Site& place : candidate.places) {
    auto step = co_await storage::OpenStep::at(place);
    if (!step) {
      errors.push_back(std::move(step).error());
    } else if (copies.empty() ||
               storage::is_same_save(*copies.front().manifest(), *step->manifest())) {
      copies.push_back(std::move(*step));
    }
  }
  errors.emplace_back(Errc::corruption, "no other copy of it is there");
  if (copies.size() < 2) co_return fail(storage::most_telling(std::move(errors)));
  CKPT_CO_TRY(auto step, co_await open_copies(std::move(copies)));
  const std::string other = os::display(step->copies[1].place());
  std::string way_out = fmt::format(
      "`ckpt verify --repair {} --from {}`, and the same the other way round, mend them",
      step->directory, other);
  // Neither that nor `cp` puts a compressed file together.
  if (is_packed(*step->manifest)) way_out = "`ckpt export` reads what is good in both";
  log_warning("puts step {} together from {} and {}, since each is damaged; {}",
              number(step->manifest->at.step), step->directory, other, way_out);
  co_return step;
}

// The first whole one. Errors: `first`, or that of the first one.
Task<std::shared_ptr<StoredStep>> open_first(std::vector<StepCandidate> candidates,
                                             std::vector<std::string> passed_over,
                                             std::optional<Error> first) {
  for (std::size_t index = 0; index < candidates.size(); ++index) {
    const StepCandidate& candidate = candidates[index];
    const bool is_one = candidate.places.size() == 1;
    Task<std::shared_ptr<StoredStep>> opening =
        is_one ? open_alone(candidate.places.front()) : open_together(candidate);
    auto opened = co_await std::move(opening);
    if (!opened) {
      const std::string directory = os::display(candidate.places.front().directory());
      if (!first) first.emplace(opened.error());
      // It may be good, so that an older one is not shown instead; its copy in another place is.
      const bool has_copy =
          index + 1 < candidates.size() && candidates[index + 1].rank == candidate.rank;
      if (storage::is_unreadable(opened.error().code()) && !has_copy)
        co_return fail(std::move(opened).error().context("read " + directory));
      if (is_one) passed_over.push_back(fmt::format("{}: {}", directory, opened.error().message()));
      continue;
    }
    const auto others = candidates.begin() + static_cast<std::ptrdiff_t>(index) + 1;
    (*opened)->others.assign(others, candidates.end());
    (*opened)->is_older = candidate.rank > 0;
    if (!passed_over.empty())
      log_warning("takes {}; {}", (*opened)->directory, storage::describe_passed_over(passed_over));
    co_return std::move(*opened);
  }
  co_return fail(std::move(*first));
}

}  // namespace

Task<std::shared_ptr<StoredStep>> open_stored_step(storage::Site given, std::string runtime_dir) {
  if (is_memory_path(given.directory())) {
    auto opened = co_await open_in_memory(given.clock(), given.directory(), std::move(runtime_dir));
    co_return opened;
  }
  const storage::Site site(given.files(), given.clock(), without_slash(given.directory()));
  CKPT_CO_TRY(const storage::Places places, storage::parse_places(site.directory()));
  if (!places.second) CKPT_CO_CHECK(co_await check_path(site));
  CKPT_CO_TRY(storage::Candidates found, co_await storage::find_candidates(site));
  CKPT_CO_TRY(const bool is_older, co_await storage::has_newer_damage(site, found));
  CKPT_CO_TRY(auto opened, co_await open_first(candidates_of(site, found),
                                               std::move(found.passed_over), std::nullopt));
  opened->is_older = opened->is_older || is_older;
  co_return opened;
}

Task<std::shared_ptr<StoredStep>> open_next(std::shared_ptr<StoredStep> damaged, Error why) {
  std::vector<std::string> passed_over{damaged->directory + ": " + why.message()};
  CKPT_CO_TRY(auto opened,
              co_await open_first(damaged->others, std::move(passed_over), std::move(why)));
  opened->is_older = opened->is_older || damaged->is_older;
  co_return opened;
}

void note_if_older(const StoredStep& step, Outcome& outcome) {
  outcome.json["newer_damaged"] = step.is_older;
  if (!step.is_older) return;
  outcome.is_trouble = true;
  outcome.text +=
      "This is not the newest step: a newer one cannot be used. `ckpt verify` says why.\n";
}

bool is_packed(const format::Manifest& manifest) {
  return std::ranges::any_of(manifest.shards, [](const format::ManifestShard& shard) {
    return std::ranges::any_of(
        shard.files, [](const format::StoredFile& file) { return file.table.has_value(); });
  });
}

std::string title_of(const format::Manifest& manifest) {
  return fmt::format("step {} of job {}, {}", number(manifest.at.step), printable(manifest.job),
                     counted(std::to_string(manifest.world_size), "rank"));
}

Error explain(Workplace& workplace, const StoredStep& step, Error error) {
  if (step.memory) return error;
  const storage::Checkpoint seen = storage::describe(*step.manifest, ".");
  const auto asked = workplace.run(storage::has_gone(workplace.site(step.directory), seen));
  if (!asked || !*asked) return error;
  return Error(Errc::unavailable,
               fmt::format("read {}: the job has removed or replaced it meanwhile; run this "
                           "again, or keep more steps (max_ckpt_num)",
                           step.directory));
}

}  // namespace ckpt::cli
