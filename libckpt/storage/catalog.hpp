// Catalog: the checkpoints in a job's directory, and why other directories there are not counted.
//
// A directory counts when its name is ours, its manifest is whole and of this run and step, and
// every file that the manifest names exists with its size. Names alone prove nothing.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/manifest.hpp"
#include "storage/checkpoint.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

struct Rejected {
  std::string name;
  Errc code{};
  std::string reason;  // For people.
  bool is_of_other_run = false;
  // It is a link, or has another step than its name says: nobody has looked at its bytes.
  bool is_misplaced = false;
  // The step whose files are damaged, by its manifest. None: only its name is known.
  std::optional<format::StepId> at = std::nullopt;
};
// Was published, and its bytes cannot be trusted now. If nothing else is found, a job must not
// start from scratch. Not damage: a checkpoint of another run, one that was replaced, a directory
// without files of ours.
bool is_damage(const Rejected& rejected);
// The step that its name says.
std::optional<Step> step_of(const Rejected& rejected);
// It may be good: the file system refused, as another user's files do, or failed. That says nothing
// about its bytes, so that it is neither passed over in silence, nor deleted, nor replaced.
bool is_unreadable(const Rejected& rejected);
bool is_unreadable(Errc code);

// Why a step's directory of this name is none of that step, as after a rename. Empty: it is one.
std::string misplaced_reason(std::string_view name, Step step);

struct Catalog {
  std::vector<Checkpoint> checkpoints;  // Ascending by (timeline, step).
  std::vector<Rejected> rejected;       // Look like ours, and are not checkpoints of this run.
};

class CatalogCache;

struct CatalogOptions {
  // None: each manifest's own run.
  std::optional<format::RunId> run;
  // None: all steps. Otherwise only this step is read and listed.
  std::optional<Step> only;
  CatalogCache* cache = nullptr;  // Lives until the Task ends. Null: every manifest is read.
  // Syncs the directory after listing it. The result is then durable, even if the publisher died
  // before its own sync.
  bool make_durable = true;
};

// Leaves out what is removed during the call. Errors: not_found (no such directory), io.
Task<Catalog> read_catalog(Site site, CatalogOptions options);

// The names of all steps, the newest first, whatever they hold: nothing of them is read. Errors:
// not_found (no such directory), io.
Task<std::vector<std::string>> list_steps(Site site);

// Reads the manifest of one directory of the site. Errors: not_found, corruption (also for shards
// without one), version_mismatch.
Task<std::shared_ptr<const format::Manifest>> read_manifest(Site site, std::string name);
// Whether there is one, by its file's status alone. Errors: io.
Task<bool> has_manifest(Site site, std::string name);
// Reads it by its path, for readers without a job. A link as the last component is not followed.
Task<std::shared_ptr<const format::Manifest>> read_manifest_at(os::FileSystem& files,
                                                               std::string directory,
                                                               Compute* compute = nullptr);

// Where the files of a shard lie: the step's directory, or a folder in it.
std::string shard_directory(std::string_view step_directory, const format::ManifestShard& shard);

Checkpoint describe(const format::Manifest& manifest, std::string name);
Task<Checkpoint> describe_on(Compute* compute, std::shared_ptr<const format::Manifest> manifest,
                             std::string name);

// Returns true if `directory` is gone, or holds another checkpoint than was `seen`. A running job
// removes and replaces steps while others read them; a problem seen there is then no damage.
Task<bool> has_gone(os::FileSystem& files, std::string directory, std::optional<Checkpoint> seen,
                    Compute* compute = nullptr);
Task<bool> has_gone(Site site, Checkpoint seen);  // By its name.

}  // namespace ckpt::storage
