// BucketRemoval: removal.hpp for a bucket: the same promises, without a rename.
//
//   a checkpoint   log -> manifest removed: it is none any more -> its files
//   an attempt     marked -> no manifest names it -> log -> uploads aborted -> its files -> the
//   mark
//
// bucket_publish.hpp says why an attempt is marked first. Objects that are not ours stay.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "format/manifest.hpp"
#include "storage/site.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

// The object that marks an attempt as discarded.
inline constexpr std::string_view discarded_name = "discarded";

// A bucket says only when an upload was begun, and no object takes a day to upload.
inline constexpr Duration upload_left_after = std::chrono::hours(24);

// The rest of remove_checkpoint, once the deletion is logged.
Task<void> remove_from_bucket(Site site, std::string name,
                              std::shared_ptr<const format::Manifest> manifest);

// Aborts the uploads to this directory and below that were begun and not ended. Errors: io.
Task<void> abort_uploads(Site site, std::string directory);

// Returns false if a manifest names the attempt: it is a checkpoint, and stays.
Task<bool> discard_attempt(Site site, std::string work_name, std::string reason);

// The names of all attempts that have objects or uploads; some are checkpoints.
Task<std::vector<std::string>> find_attempts(Site site);

// Returns true if the step's manifest names the attempt. Errors: one that cannot be read may name
// it, too.
Task<bool> is_published_attempt(Site site, WorkDirectory work);

// Also aborts uploads that are older than a day in attempts that were published.
Task<std::vector<std::string>> discard_stale_in_bucket(
    Site site, std::function<bool(std::string work_name)> is_stale);

}  // namespace ckpt::storage
