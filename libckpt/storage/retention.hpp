// Retention: selects the checkpoints to delete, and deletes them.
//
// Never deletes the newest one, nor the protected ones (the step that runs restore from, the last
// one known good). The order is that of recovery: newer timelines first, then newer steps. Steps
// that a restore abandoned are deleted before any that it could still use.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "storage/catalog.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// Pure. Returns indices into `checkpoints`, the first to delete first. `max_ckpt_num` 0: keeps all.
std::vector<std::size_t> select_for_deletion(std::span<const Checkpoint> checkpoints,
                                             std::uint32_t max_ckpt_num,
                                             std::span<const format::StepId> protected_steps);

struct RetentionOrder {
  format::RunId run;
  std::uint32_t max_ckpt_num = 0;
  std::vector<format::StepId> protected_steps;
};

// Deletes the surplus of the catalog, which was just read, and removes it there too. Returns the
// deleted checkpoints. `catalog` lives until the Task ends. After an error, the rest still exists.
// Errors: those of remove_checkpoint; unavailable (a manifest could not be read, and nothing was
// deleted).
Task<std::vector<Checkpoint>> apply_retention(Site site, RetentionOrder order, Catalog& catalog);

}  // namespace ckpt::storage
