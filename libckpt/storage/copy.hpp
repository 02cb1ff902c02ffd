// Copy: brings a published checkpoint into another run's directory, byte for byte.
//
//   marker -> each rank: Chunks verified and written, files synced, part -> manifest -> work
//   directory synced -> history -> renamed -> parent synced -> `latest`
//
// The manifest is that of the source, so the copy is the same checkpoint: same run, timeline and
// step. A copy that ended early leaves its work directory, and the next one of the same checkpoint
// goes on there: a rank whose part is there, and whose files are whole, is not copied again.
// Source and target may be in buckets; there the manifest differs by the folders that it names.
#pragma once

#include <string>

#include "storage/copy_order.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

struct Copied {
  std::string name;        // The checkpoint's, in the target.
  bool was_there = false;  // Published and whole: nothing was copied.
};

// `target` is made if only its parent exists. Errors: invalid_argument (the target is another run's
// directory, has another checkpoint of this step, or has another history), version_mismatch (has a
// newer libckpt's there), corruption (of the source: names file and Chunk; or a copy that is there
// already), exhausted, cancelled, io. After an error no checkpoint is there that was not before.
Task<Copied> copy_checkpoint(Site target, CopyOrder order);

}  // namespace ckpt::storage
