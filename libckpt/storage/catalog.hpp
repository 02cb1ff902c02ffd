// Catalog: which checkpoints a job's directory holds, and why each of the others is none.
//
// A directory counts when its name is ours and its manifest is whole, of this run and of this step,
// and every file that it names is there with its size. Names alone prove nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

struct Checkpoint {
  format::StepId at;
  std::string name;  // Below the directory.
  std::string job;
  format::RunId run;
  std::uint32_t world_size = 1;
  std::uint64_t bytes = 0;                 // Of all its files but the manifest.
  std::vector<Digest> digests;             // Of the records, by rank.
  std::uint64_t created_unix_seconds = 0;  // As its writer's clock had it; for people.
  bool is_abandoned = false;               // By a restore to an older step; see run_catalog.hpp.
};

struct Rejected {
  std::string name;
  Errc code{};
  std::string reason;  // For people.
  bool is_of_other_run = false;
};
// Published once, and not to be trusted now: whoever finds nothing else must not begin anew. Not:
// one of another run, one that was replaced, a directory that holds no file of ours.
bool is_damage(const Rejected& rejected);

struct Catalog {
  std::vector<Checkpoint> checkpoints;  // Ascending by (timeline, step).
  std::vector<Rejected> rejected;       // Look like ours, and are no checkpoints of this run.
};

class CatalogCache;

struct CatalogOptions {
  // None: whichever run each manifest names.
  std::optional<format::RunId> run;
  // None: all steps. Else no other step is looked at, and the catalog has no other.
  std::optional<Step> only;
  CatalogCache* cache = nullptr;  // Lives until the Task ends. Null: every manifest is read.
  // Syncs the directory after it was listed: what is returned is then durable, also where whoever
  // published it died before he could sync.
  bool make_durable = true;
};

// What is removed while it is read is not listed. Errors: not_found (no such directory), io.
Task<Catalog> read_catalog(Site site, CatalogOptions options);

// The manifest of one directory below the site. Errors: not_found, corruption (also where shards
// lie without one), version_mismatch.
Task<std::shared_ptr<const format::Manifest>> read_manifest(Site site, std::string name);
// By its path, for readers that have no job. The last component is not followed as a link.
Task<std::shared_ptr<const format::Manifest>> read_manifest_at(os::FileSystem& files,
                                                               std::string directory,
                                                               Compute* compute = nullptr);

Checkpoint describe(const format::Manifest& manifest, std::string name);
Task<Checkpoint> describe_on(Compute* compute, std::shared_ptr<const format::Manifest> manifest,
                             std::string name);

// Whether `directory` is there no more, or holds another checkpoint than was `seen`: a job that
// runs removes and replaces steps under who reads them. What was wrong there is then no damage.
Task<bool> has_gone(os::FileSystem& files, std::string directory, std::optional<Checkpoint> seen,
                    Compute* compute = nullptr);

}  // namespace ckpt::storage
