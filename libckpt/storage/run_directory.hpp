// RunDirectory: a job's directory: its marker, its history of timelines, and its owner.
//
// The first node writes the marker (.libckpt/run.json) once; the others read it. A directory with
// another job's marker is refused: two jobs in one directory would delete each other's checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "format/run_files.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// MountedAt: the file system that holds a directory, and the mount through which it is seen.
struct MountedAt {
  std::uint64_t device = 0;
  std::uint64_t mount = 0;
  bool operator==(const MountedAt&) const = default;
};

struct RunOrder {
  std::string job;
  format::RunId fresh_run;           // Random: the run, if there is no marker yet.
  std::uint64_t attempt = 0;         // Random: for the names of temporary files.
  bool is_running = false;           // The marker existed before: the checkpoints are ours.
  std::optional<MountedAt> mounted;  // Where it was: it is not created anywhere else.
  bool requires_mount = false;       // It is not used on the root file system.
};

// Creates the directory (not its parents) and the marker if they are missing, and proves that it is
// writable; a full disk is only logged where the marker was there. Returns the marker that all
// nodes agree on, durable. Errors: not_found (the parent does not exist), invalid_argument (not a
// directory; the directory of another job: both are named), corruption (a damaged marker, or
// checkpoints without one), io (not writable), exhausted (it is new, and the disk is full),
// unavailable (mounted elsewhere than the order says, or not at all).
Task<format::RunMarker> open_run_directory(Site site, RunOrder order);

// In a bucket: proves that it can be written to, and that its server keeps conditions. `attempt` is
// random. Errors: unsupported (it ignores them), io.
Task<void> prove_conditions(Site site, std::uint64_t attempt);

// Looks at the directory, or at the place where it would be made. Errors: not_found, unsupported
// (it is in a bucket), io.
Task<MountedAt> mounted_at(Site site);

// For people: since when a bucket's server does not answer. Empty: it does, or there is none.
std::string silence_of(const Site& site);

// For readers. Errors: not_found (no marker), corruption.
Task<format::RunMarker> read_run_marker(Site site);

// Empty if nothing was stored yet. Errors: corruption, invalid_argument (of another run), io.
Task<format::Timelines> load_timelines(Site site, format::RunId run);
// Atomic: after a crash the file has the old text or the new one. `attempt` is random.
Task<void> store_timelines(Site site, format::Timelines timelines, std::uint64_t attempt);

// Writes a temporary file, syncs it, renames it to `name`, syncs the directory. All below the site.
// In a bucket, one put does all of this, and of the next function too.
Task<void> replace_file(Site site, std::string name, std::string text, std::string aside_name);
// The same for a file by which nothing is decided: after a crash it may be the old one. The next
// sync of the directory makes it durable, and each deletion begins with one.
Task<void> replace_hint(Site site, std::string name, std::string text, std::string aside_name);
// Writes a temporary file and links it as `name`. Returns false if `name` exists, and leaves it.
Task<bool> create_once(Site site, std::string name, std::string text, std::string aside_name);

}  // namespace ckpt::storage
