// CopyTarget: whose run the directory is that a checkpoint is copied into, and the run's history
// there.
//
//   prepare_target -> the bytes are copied -> add_history -> the step is published
//
// The history comes last: one that is there without the step that it belongs to may abandon all
// that is there, and a job with that directory begins anew, and deletes it.
#pragma once

#include "storage/copy_order.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// The target gets the marker of the run. Returns both histories, which are not stored there yet.
// Errors: invalid_argument (another run's directory; the histories differ; of a running job, the
// step is abandoned), io.
Task<format::Timelines> prepare_target(Site target, const CopyOrder& order);

// Stores both histories there, and returns them. Errors: as above, exhausted.
Task<format::Timelines> add_history(Site target, const CopyOrder& order);

}  // namespace ckpt::storage
