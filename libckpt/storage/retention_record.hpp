// RetentionRecord: what a job keeps, written down in its directory for tools that delete.
//
// The daemon that coordinates goes by its trainers' options, and records them when it first
// publishes. `ckpt gc` may run when no trainer does, or on another machine.
#pragma once

#include <cstdint>
#include <optional>

#include "storage/retention.hpp"

namespace ckpt::storage {

// None: nothing was recorded for this run. Errors: corruption, version_mismatch, io.
Task<std::optional<RetentionRule>> load_retention(Site site, format::RunId run);

struct RetentionRecord {
  format::RunId run;
  RetentionRule rule;
  std::uint64_t attempt = 0;  // Random: names the file until it is in place.
};
// Writes nothing where the same is recorded, and nothing for a rule that keeps all where none is.
// After a crash it may be the old one. Errors: exhausted, io.
Task<void> record_retention(Site site, RetentionRecord record);

}  // namespace ckpt::storage
