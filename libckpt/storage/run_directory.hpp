// RunDirectory: a job's directory: its marker, its history of timelines, and whose it is.
//
// The marker (.libckpt/run.json) is written once, by whichever node comes first; the others read
// it. A directory with another job's marker is refused: two jobs in one directory would delete
// each other's checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "format/run_files.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

struct RunOrder {
  std::string job;
  format::RunId fresh_run;    // Random: becomes the run where there is no marker yet.
  std::uint64_t attempt = 0;  // Random: for the names of files that are written aside.
  bool is_running = false;    // The marker was there: checkpoints that lie there are known.
  // Of the file system that the directory was on: on another one none is made.
  std::optional<std::uint64_t> device;
};

// Creates the directory (not its parents) and the marker where they are missing, and proves that
// it can be written to. Returns the marker that all nodes agree on, durable.
// Errors: not_found (the parent does not exist), invalid_argument (not a directory; the directory
//         of another job: both are named), corruption (a marker that was damaged, or checkpoints
//         without one), io (it cannot be written to), exhausted (the disk is full), unavailable
//         (another device than the order's).
Task<format::RunMarker> open_run_directory(Site site, RunOrder order);

// Of the file system that the directory is on, or would be made on. Errors: not_found, io.
Task<std::uint64_t> device_of(Site site);

// For readers. Errors: not_found (no marker), corruption.
Task<format::RunMarker> read_run_marker(Site site);

// Empty where none were stored yet. Errors: corruption, invalid_argument (of another run), io.
Task<format::Timelines> load_timelines(Site site, format::RunId run);
// Atomic: after a crash the file has the old text or the new one. `attempt` is random.
Task<void> store_timelines(Site site, format::Timelines timelines, std::uint64_t attempt);

// Writes aside, syncs, renames over `name`, syncs the directory. Names are below the site.
Task<void> replace_file(Site site, std::string name, std::string text, std::string aside_name);
// Writes aside, and makes `name` of it. False: it was there, and stays as it is.
Task<bool> create_once(Site site, std::string name, std::string text, std::string aside_name);

}  // namespace ckpt::storage
