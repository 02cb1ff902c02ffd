#include "cli/stored_step.hpp"

#include <fmt/format.h>

#include "base/log.hpp"
#include "cli/table.hpp"
#include "os/path.hpp"
#include "storage/catalog.hpp"
#include "storage/places.hpp"
#include "storage/search.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::cli {

namespace {

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

Task<void> check_there(os::FileSystem& files, std::string path) {
  const auto there = co_await files.status(os::beneath(path, "."));
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

std::string shown(const std::string& directory) {
  std::string text = os::display(directory);
  if (text.ends_with("/.")) text.resize(text.size() - 2);
  return text;
}

Task<std::shared_ptr<StoredStep>> open_at(os::FileSystem& files, std::string directory) {
  const auto step = std::make_shared<StoredStep>();
  step->directory = shown(directory);
  CKPT_CO_TRY(step->manifest, co_await storage::read_manifest_at(files, directory));
  step->files = std::make_unique<gather::StoredShards>(files, directory, step->manifest);
  CKPT_CO_TRY(step->shards, co_await gather::KnownShards::read(*step->files));
  step->tensors = gather::list_tensors(*step->shards);
  co_return step;
}

Task<std::shared_ptr<StoredStep>> open_in_memory(Clock& clock, std::string path,
                                                 std::string runtime_dir) {
  const auto step = std::make_shared<StoredStep>();
  CKPT_CO_TRY(MemoryPath parsed, parse_memory_path(path));
  const std::string job = parsed.job;
  CKPT_CO_TRY(step->memory,
              co_await MemoryStep::open(clock, std::move(runtime_dir), std::move(parsed)));
  step->manifest = step->memory->manifest();
  step->directory = fmt::format("{}{}/{}", memory_prefix, job,
                                storage::step_directory_name(step->manifest->at.step));
  CKPT_CO_TRY(step->shards, co_await gather::KnownShards::read(*step->memory));
  step->tensors = gather::list_tensors(*step->shards);
  co_return step;
}

// The first whole one. Errors: `first`, or that of the first one.
Task<std::shared_ptr<StoredStep>> open_first(os::FileSystem& files,
                                             std::vector<std::string> directories,
                                             std::vector<std::string> passed_over,
                                             std::optional<Error> first) {
  for (std::size_t index = 0; index < directories.size(); ++index) {
    auto opened = co_await open_at(files, directories[index]);
    if (!opened) {
      if (!first) first.emplace(opened.error());
      // It may be good, so that an older one is not shown instead; its copy in another place is.
      const bool has_copy =
          index + 1 < directories.size() &&
          os::file_name(directories[index + 1]) == os::file_name(directories[index]);
      if (storage::is_unreadable(opened.error().code()) && !has_copy)
        co_return fail(std::move(*first).context("read " + shown(directories[index])));
      passed_over.push_back(
          fmt::format("{}: {}", shown(directories[index]), opened.error().message()));
      continue;
    }
    const auto others = directories.begin() + static_cast<std::ptrdiff_t>(index) + 1;
    (*opened)->others.assign(others, directories.end());
    if (!passed_over.empty())
      log_warning("takes {}; {}", (*opened)->directory, storage::describe_passed_over(passed_over));
    co_return std::move(*opened);
  }
  co_return fail(std::move(*first));
}

}  // namespace

Task<std::shared_ptr<StoredStep>> open_stored_step(os::FileSystem& files, Clock& clock,
                                                   std::string path, std::string runtime_dir) {
  if (is_memory_path(path)) {
    auto opened = co_await open_in_memory(clock, std::move(path), std::move(runtime_dir));
    co_return opened;
  }
  path = without_slash(std::move(path));
  CKPT_CO_TRY(const storage::Places places, storage::parse_places(path));
  if (!places.second) CKPT_CO_CHECK(co_await check_there(files, path));
  CKPT_CO_TRY(storage::Candidates found, co_await storage::find_candidates(files, clock, path));
  // A path that is a checkpoint itself may be a link; nothing below it may be one.
  if (found.directories.front() == path) found.directories.front() = os::join(path, ".");
  auto opened = co_await open_first(files, std::move(found.directories),
                                    std::move(found.passed_over), std::nullopt);
  co_return opened;
}

Task<std::shared_ptr<StoredStep>> open_next(os::FileSystem& files,
                                            std::shared_ptr<StoredStep> damaged, Error why) {
  std::vector<std::string> passed_over{damaged->directory + ": " + why.message()};
  auto opened = co_await open_first(files, damaged->others, std::move(passed_over), std::move(why));
  co_return opened;
}

std::string title_of(const format::Manifest& manifest) {
  return fmt::format("step {} of job {}, {}", number(manifest.at.step), printable(manifest.job),
                     counted(std::to_string(manifest.world_size), "rank"));
}

Task<void> explain(os::FileSystem& files, std::shared_ptr<StoredStep> step, Error error) {
  if (step->memory) co_return fail(std::move(error));
  const storage::Checkpoint seen = storage::describe(*step->manifest, step->directory);
  const std::string path = os::join(step->directory, ".");
  const auto asked = co_await storage::has_gone(files, path, seen);
  if (!asked || !*asked) co_return fail(std::move(error));
  co_return fail(Errc::unavailable,
                 fmt::format("read {}: the job has removed or replaced it meanwhile; run this "
                             "again, or keep more steps (max_ckpt_num)",
                             step->directory));
}

}  // namespace ckpt::cli
