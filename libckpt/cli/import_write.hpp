// ImportWrite: makes a published checkpoint of one rank from an ImportSource.
//
//   Layout -> Chunks (read, checksummed, written) -> files synced -> part -> publish
//
// Memory: one Chunk at a time, and the descriptions.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/import_source.hpp"
#include "storage/publish.hpp"
#include "storage/site.hpp"

namespace ckpt::cli {

struct ImportOrder {
  std::string job;
  Step step{};
  // Put before all names. "model." also makes them one item of a session of Python, called "model".
  std::string prefix;
  format::RunId fresh_run;             // Random: the run, if the directory has none yet.
  std::uint64_t attempt = 0;           // Random.
  std::uint64_t chunk_bytes = 0;       // default_chunk_bytes; smaller in tests.
  std::function<bool()> is_cancelled;  // Asked between Chunks.
  std::function<void(std::uint64_t bytes)> written;  // After so many more.
};

// The site's directory is made if its parent exists. Errors: invalid_argument (it has checkpoints
// already, or belongs to another job; a name that cannot be stored), exhausted, cancelled, io.
// After an error nothing new is published, and the work directory is gone.
Task<storage::PublishOutcome> write_import(storage::Site site,
                                           std::shared_ptr<const ImportSource> source,
                                           ImportOrder order);

}  // namespace ckpt::cli
