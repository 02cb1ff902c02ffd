#include "cli/stored_step.hpp"

#include <fmt/format.h>

#include "base/log.hpp"
#include "cli/table.hpp"
#include "os/path.hpp"
#include "storage/catalog.hpp"
#include "storage/places.hpp"
#include "storage/search.hpp"

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

}  // namespace

Task<std::shared_ptr<StoredStep>> open_stored_step(os::FileSystem& files, Clock& clock,
                                                   std::string path) {
  path = without_slash(std::move(path));
  CKPT_CO_TRY(const storage::Places places, storage::parse_places(path));
  if (!places.second) CKPT_CO_CHECK(co_await check_there(files, path));
  CKPT_CO_TRY(auto found, co_await storage::find_checkpoint(files, clock, path));
  const auto step = std::make_shared<StoredStep>();
  step->directory = os::display(found.directory);
  if (!found.passed_over.empty())
    log_warning("takes {}; {}", step->directory, storage::describe_passed_over(found.passed_over));
  // A path that is a checkpoint itself may be a link; nothing below it may be one.
  if (found.directory == path) found.directory = os::join(path, ".");
  step->manifest = found.manifest;
  step->files =
      std::make_unique<gather::StoredShards>(files, found.directory, std::move(found.manifest));
  CKPT_CO_TRY(step->shards, co_await gather::KnownShards::read(*step->files));
  step->tensors = gather::list_tensors(*step->shards);
  co_return step;
}

std::string title_of(const format::Manifest& manifest) {
  return fmt::format("step {} of job {}, {}", number(manifest.at.step), printable(manifest.job),
                     counted(std::to_string(manifest.world_size), "rank"));
}

Task<void> explain(os::FileSystem& files, std::shared_ptr<StoredStep> step, Error error) {
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
