// RunCatalog: a directory's checkpoints, with abandoned ones marked, for readers without a job.
//
// A reader without daemons must not return a step that they would refuse.
#pragma once

#include <optional>
#include <string>

#include "storage/catalog.hpp"

namespace ckpt::storage {

struct RunCatalog {
  Catalog catalog;                   // With `is_abandoned` set.
  std::optional<format::RunId> run;  // From the marker; none: it is missing or damaged.
  // Why the history of restores is unknown; empty: it is known. Other problems are in `rejected`.
  std::string history_problem;
  bool is_history_unreadable = false;  // Then: it is there, and may be good.
};

// The history of restores is unknown, since its marker or itself could not be read.
void note_problem(RunCatalog& read, const Error& error);

// Sets `is_abandoned` in the run's checkpoints according to the directory's history of restores.
// `catalog` lives until the Task ends. Errors: corruption (also a lost history), invalid_argument,
// io.
Task<void> mark_abandoned(Site site, format::RunId run, Catalog& catalog);

// The checkpoint that a restore takes; null: restores to older steps have abandoned all.
const Checkpoint* newest_living(const Catalog& catalog);

// Reads all runs in it; changes nothing. Errors: not_found (no such directory), io.
Task<RunCatalog> read_run_catalog(Site site);

}  // namespace ckpt::storage
