// Copy: brings a published checkpoint into another run's directory, byte for byte.
//
//   marker and history -> each rank: Chunks verified and written, files synced, part -> manifest ->
//   work directory synced -> renamed -> parent synced -> `latest`
//
// The manifest is that of the source, so the copy is the same checkpoint: same run, timeline and
// step. A copy that ended early leaves its work directory, and the next one of the same checkpoint
// goes on there: a rank whose part is there, and whose files are whole, is not copied again.
// Source and target may be in buckets; there the manifest differs by the folders that it names.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "format/run_files.hpp"
#include "storage/member_writer.hpp"
#include "storage/shard_copies.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

struct CopyOrder {
  std::string source;  // The checkpoint's directory, marked (Site::at).
  std::shared_ptr<const format::Manifest> manifest;
  std::vector<StepCopy> others;  // Of the same save: what is damaged in the source is read there.
  // The history that lies beside the source; null: there is none, and the copy begins one.
  std::shared_ptr<const format::Timelines> timelines;
  std::uint64_t attempt = 0;           // Random: for the names of temporary files.
  std::function<bool()> is_cancelled;  // Asked between Chunks. Empty: never.
  // Called after so many bytes more: copied, or found there.
  std::function<void(std::uint64_t bytes, bool was_there)> done;
  TransferHooks
      hooks;  // For the copying: threads for checksums, bandwidth. `verified` is not called.
  // Steps abandoned by the history of both places are not copied, and make way for those that are.
  bool is_of_running_job = false;
};

struct Copied {
  std::string name;        // The checkpoint's, in the target.
  bool was_there = false;  // Published and whole: nothing was copied.
};

// The first step alone: the target gets the marker of the run and both histories, which it returns.
// Errors: invalid_argument as below, io.
Task<format::Timelines> prepare_target(Site target, const CopyOrder& order);

// `target` is made if only its parent exists. Errors: invalid_argument (the target is another run's
// directory, has another checkpoint of this step, or has another history), corruption (of the
// source: names file and Chunk; or a copy that is there already), exhausted, cancelled, io. After
// an error no checkpoint is there that was not before.
Task<Copied> copy_checkpoint(Site target, CopyOrder order);

}  // namespace ckpt::storage
