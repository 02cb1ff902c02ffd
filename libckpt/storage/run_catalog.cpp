#include "storage/run_catalog.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

void note_problem(RunCatalog& read, const Error& error) {
  CKPT_ASSERT(error.code() != Errc{});
  read.history_problem = error.message();
  read.is_history_unreadable = is_unreadable(error.code());
  CKPT_ASSERT(!read.history_problem.empty());
}

Task<void> mark_abandoned(Site site, format::RunId run, Catalog& catalog) {
  CKPT_CO_TRY(const auto timelines, co_await load_timelines(site, run));
  const bool has_any =
      std::any_of(catalog.checkpoints.begin(), catalog.checkpoints.end(),
                  [&](const Checkpoint& checkpoint) { return checkpoint.run == run; });
  // Each start records its timeline before anybody trains on it.
  if (timelines.history.empty() && has_any)
    co_return fail(Errc::corruption, fmt::format("{} is missing: which steps a restore has "
                                                 "abandoned is not known any more",
                                                 os::display(site.at(timelines_name))));
  for (Checkpoint& checkpoint : catalog.checkpoints) {
    checkpoint.is_abandoned =
        checkpoint.run == run && format::is_abandoned(timelines.history, checkpoint.at);
  }
  co_return Status();
}

const Checkpoint* newest_living(const Catalog& catalog) {
  const Checkpoint* newest = nullptr;
  for (const Checkpoint& checkpoint : catalog.checkpoints) {
    const bool is_newer = newest == nullptr || newest->at <= checkpoint.at;
    if (!checkpoint.is_abandoned && is_newer) newest = &checkpoint;
  }
  return newest;
}

Task<RunCatalog> read_run_catalog(Site site) {
  RunCatalog found;
  CatalogOptions options;
  options.make_durable = false;
  CKPT_CO_TRY(found.catalog, co_await read_catalog(site, options));
  auto marker = co_await read_run_marker(site);
  if (!marker) {
    // Without a marker they lie as somebody copied them.
    if (marker.error().code() != Errc::not_found) note_problem(found, marker.error());
    co_return found;
  }
  found.run = marker->run;
  const auto marked = co_await mark_abandoned(site, *found.run, found.catalog);
  if (!marked) note_problem(found, marked.error());
  co_return found;
}

}  // namespace ckpt::storage
