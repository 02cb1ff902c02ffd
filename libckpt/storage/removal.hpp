// Removal: takes away one directory of ours, and nothing else, so that no crash leaves a checkpoint
// that looks whole and is not.
//
//   log --> rename to a hidden name --> sync the parent --> files --> manifest --> the directory
//
// From the rename on it is no checkpoint any more, and what a crash leaves is found again by its
// hidden name. Only files that the manifest names are removed, or, where there is no manifest yet,
// those whose names only we make. Links are never followed, foreign files stay, and so does then
// the directory. Nothing here needs room on the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// Deletes the published checkpoint `name`, whose manifest says that it is of `run`.
// Errors: not_found (it is gone), invalid_argument (it is not of this run), corruption (its
//         manifest cannot be trusted: nothing is touched), io.
Task<void> remove_checkpoint(Site site, std::string name, format::RunId run, std::string reason);

// Removes a hidden directory: an attempt that was given up, or the rest of a deletion. It first
// syncs the parent, so that what was exchanged out of its place is durably out of it.
// Errors: invalid_argument (a name that is not a work directory's), io. None: it is gone already.
Task<void> discard_work_directory(Site site, std::string name, std::string reason);

// StaleAttempts: which work directories are over: those of timelines below `timelines_below`, and
// those in `names`; never those that are kept.
struct StaleAttempts {
  std::uint64_t timelines_below = UINT64_MAX;
  std::vector<std::string> names;
  // Asked for each when it is about to go: one may have been begun meanwhile. None: none is kept.
  std::function<bool(const std::string&)> is_kept;
  bool with_files_aside = true;  // Also files that were written aside and never renamed.
};

// Discards them, but for those with foreign files in them. One that somebody still writes into, or
// is about to publish, is taken away in one step: he finds nothing there, and fails.
// Returns the names that were removed.
Task<std::vector<std::string>> discard_stale(Site site, StaleAttempts stale);

}  // namespace ckpt::storage
