#include "storage/run_catalog.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "storage/run_directory.hpp"

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
  }
  return Error(code, text);
}

}  // namespace

Task<void> mark_abandoned(Site site, format::RunId run, Catalog& catalog) {
  CKPT_CO_TRY(const auto timelines, co_await load_timelines(site, run));
  const bool has_any =
      std::any_of(catalog.checkpoints.begin(), catalog.checkpoints.end(),
                  [&](const Checkpoint& checkpoint) { return checkpoint.run == run; });
  // Each start records its timeline before anybody trains on it.
  if (timelines.history.empty() && has_any)
    co_return fail(Errc::corruption, "there is none in " + site.directory());
  for (Checkpoint& checkpoint : catalog.checkpoints) {
    checkpoint.is_abandoned =
        checkpoint.run == run && format::is_abandoned(timelines.history, checkpoint.at);
  }
  co_return Status();
}

Task<RunCatalog> read_run_catalog(Site site) {
  RunCatalog found;
  CatalogOptions options;
  options.make_durable = false;
  CKPT_CO_TRY(found.catalog, co_await read_catalog(site, options));
  auto marker = co_await read_run_marker(site);
  if (!marker) {
    // Without a marker they lie as somebody copied them.
    if (marker.error().code() != Errc::not_found) found.history_problem = marker.error().message();
    co_return found;
  }
  found.run = marker->run;
  const auto marked = co_await mark_abandoned(site, *found.run, found.catalog);
  if (!marked) found.history_problem = marked.error().message();
  co_return found;
}

Task<FoundCheckpoint> find_checkpoint(os::FileSystem& files, Clock& clock, std::string path) {
  FoundCheckpoint found;
  const auto itself = co_await read_manifest_at(files, os::join(path, "."));
  if (itself) {
    found.directory = path;
    found.manifest = *itself;
    co_return found;
  }
  if (itself.error().code() != Errc::not_found) co_return fail(itself.error());
  const Site site(files, clock, path);
  auto read = co_await read_run_catalog(site);
  if (!read) co_return fail(std::move(read).error().context("look for a checkpoint"));
  if (!read->history_problem.empty() && !read->catalog.checkpoints.empty()) {
    // Without the history, an abandoned step may look like the newest.
    co_return fail(Errc::corruption,
                   fmt::format("look for a checkpoint in {}: the history of its timelines is lost "
                               "({}): name the checkpoint itself",
                               path, read->history_problem));
  }
  const auto& all = read->catalog.checkpoints;
  const auto newest = std::find_if(all.rbegin(), all.rend(), [](const Checkpoint& checkpoint) {
    return !checkpoint.is_abandoned;
  });
  if (newest == all.rend()) co_return fail(nothing_to_restore(path, read->catalog));
  found.directory = site.at(newest->name);
  CKPT_CO_TRY(found.manifest, co_await read_manifest(site, newest->name));
  co_return found;
}

}  // namespace ckpt::storage
