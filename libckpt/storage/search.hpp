// Search: the checkpoints that a path may mean, for readers without a job.
//
// A path is a checkpoint, the directory of a run, or a parent of such directories. In a run, the
// newest checkpoint counts that is whole and that no restore has abandoned; among several runs,
// the one that was published last. Two places of one run (places.hpp) are searched together: a step
// that both have counts once, and is read from the first, or else from the second.
//
// The path is the directory of the Site, in all that follows.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "storage/run_catalog.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// How far below a parent runs are looked for, and in how many directories.
inline constexpr int search_depth_max = 3;
inline constexpr std::size_t search_directories_max = 10'000;

struct FoundRun {
  std::string name;       // Relative to the path; empty: the path itself.
  std::string directory;  // Its path.
  RunCatalog read;
};
struct FoundRuns {
  std::vector<FoundRun> runs;
  std::vector<std::string> unreadable;  // Directories with the reason, in one line each.
  std::vector<std::string>
      unreadable_below;  // Their paths, of those below the path that was given.
  // One of two places may hold checkpoints, and could not be read; none: both were read.
  std::optional<Error> failure;
};
// The run whose directory the path is, or all runs below it, by name; of two places, the run of
// both. Errors: not_found (no such directory), invalid_argument (the places are of different runs),
// exhausted (too many directories below it), io.
Task<FoundRuns> find_runs(Site site);

// The same, and also the runs below a run: somebody may have copied one into the other's directory,
// where a search for the best checkpoint does not look. `runs` has the run itself first.
Task<FoundRuns> find_runs_everywhere(Site site);

struct Candidates {
  std::vector<std::string> directories;  // The best first; never empty.
  std::set<std::size_t> copies;  // Which of them are the checkpoint before it, in another place.
  // Checkpoints that would have come before the first one, with reasons: "step-9: chunk 3 ...".
  std::vector<std::string> passed_over;
  // Directories of the first one's run, in each place, that are damaged: they lack files, or have
  // others than their manifests say. The rest may do for what their copies lack.
  std::vector<std::string> damaged;
};

// Errors: not_found (says what was there instead), corruption (everything there is damaged, or the
// history of restores is), exhausted (too many directories below the path), io (also where a step
// that is newer than all others could not be read).
Task<Candidates> find_candidates(Site site);

// Whether something newer than the first of them is damaged, and no restore has abandoned it.
// Errors: none.
Task<bool> has_newer_damage(Site site, Candidates found);

// One line: "passed over: A; B"; empty for none.
std::string describe_passed_over(const std::vector<std::string>& passed_over);

}  // namespace ckpt::storage
