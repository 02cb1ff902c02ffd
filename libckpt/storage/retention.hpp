// Retention: which checkpoints to delete, and deleting them.
//
// The newest is never deleted, nor what is protected (the step that runs restore from, the last one
// known good). The order is that of recovery: newer timelines first, then newer steps; what a
// restore has abandoned goes before all that it could still take.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "storage/catalog.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// Pure. Indices into `checkpoints`, least wanted first. `max_ckpt_num` 0: all are kept.
std::vector<std::size_t> select_for_deletion(std::span<const Checkpoint> checkpoints,
                                             std::uint32_t max_ckpt_num,
                                             std::span<const format::StepId> protected_steps);

struct RetentionOrder {
  format::RunId run;
  std::uint32_t max_ckpt_num = 0;
  std::vector<format::StepId> protected_steps;
};

// Deletes what is too many of the catalog, which was just read, and takes it out of it. Returns
// what was deleted. `catalog` lives until the Task ends. Errors: those of remove_checkpoint;
// unavailable (a manifest could not be read: then nothing is
//         deleted). The rest is then still there.
Task<std::vector<Checkpoint>> apply_retention(Site site, RetentionOrder order, Catalog& catalog);

}  // namespace ckpt::storage
