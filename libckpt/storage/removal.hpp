// Removal: removes one directory of ours and nothing else. No crash leaves a checkpoint that looks
// whole and is not.
//
//   log --> rename to a hidden name --> sync the parent --> files --> manifest --> the directory
//
// From the rename on it is not a checkpoint, and its hidden name shows the remains of a crash. Only
// files that the manifest names are removed; without a manifest, those with names that only we
// make. Links are never followed. Foreign files stay, and so does their directory then. None of
// this needs room on the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "storage/checkpoint.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// Deletes a published checkpoint, whose manifest must be of `run`, if its name still leads to what
// was listed, perhaps long ago: a job that restores an older step stores others under the names of
// those that it abandoned, and two daemons may publish the same one. Errors: not_found (it is gone,
// or another one has its name), invalid_argument (it is not of this run), corruption (its manifest
// cannot be trusted: nothing is touched), unavailable (some file could not be read: likewise), io.
Task<void> remove_checkpoint(Site site, Checkpoint listed, format::RunId run, std::string reason);

// Removes a hidden directory: an abandoned attempt, or the remains of a deletion. First syncs the
// parent, so that an exchange is durable. Succeeds if it is already gone. Errors: invalid_argument
// (not a work directory's name), io.
Task<void> discard_work_directory(Site site, std::string name, std::string reason);

// StaleAttempts: selects finished work directories: those of timelines below `timelines_below`, and
// those in `names`; never one that is kept.
struct StaleAttempts {
  std::uint64_t timelines_below = UINT64_MAX;
  std::vector<std::string> names;
  // Called right before each removal, since the attempt may have started meanwhile. None: keeps
  // none.
  std::function<bool(const std::string&)> is_kept;
  bool with_files_aside = true;  // Also removes temporary files that were never renamed.
};

// Discards the selected directories, except those with foreign files. A directory that somebody
// still writes into, or is about to publish, is removed in one step, and its writer fails. Returns
// the names that were removed.
Task<std::vector<std::string>> discard_stale(Site site, StaleAttempts stale);

}  // namespace ckpt::storage
