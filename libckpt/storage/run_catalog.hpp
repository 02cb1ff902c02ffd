// RunCatalog: a directory's checkpoints for readers that have no job, with what restores abandoned.
//
// Who reads a directory without its daemons must not bring back a step that they would refuse.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "storage/catalog.hpp"

namespace ckpt::storage {

struct RunCatalog {
  Catalog catalog;                   // `is_abandoned` is set in it.
  std::optional<format::RunId> run;  // Of the marker; none: there is none, or it is damaged.
  // Why it is not known what restores abandoned; empty: it is known. Of the others see rejected.
  std::string history_problem;
};

// Sets `is_abandoned` of the run's checkpoints, as the directory's history of restores has it.
// `catalog` lives until the Task ends. Errors: corruption (lost, too), invalid_argument, io.
Task<void> mark_abandoned(Site site, format::RunId run, Catalog& catalog);

// Of all runs in it; changes nothing there. Errors: not_found (no such directory), io.
Task<RunCatalog> read_run_catalog(Site site);

struct FoundCheckpoint {
  std::string directory;
  std::shared_ptr<const format::Manifest> manifest;
};

// `path` is a checkpoint's directory, or one that holds checkpoints: then the newest complete one
// that no restore has abandoned. Errors: not_found (says what was there instead), corruption (all
// that is there is damaged, or the history of restores is), io.
Task<FoundCheckpoint> find_checkpoint(os::FileSystem& files, Clock& clock, std::string path);

}  // namespace ckpt::storage
