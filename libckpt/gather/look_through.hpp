// LookThrough: which elements of declared tensors a step lacks, from the descriptions of all its
// shards.
#pragma once

#include "gather/coverage.hpp"
#include "gather/shard_source.hpp"
#include "storage/open_step.hpp"

namespace ckpt::gather {

struct LookedThrough {
  Digest layouts;  // storage::digest_of_layouts(): a step with the same lacks the same.
  Missing missing;
};

// `shards` lives until it ends; the work is done on `compute` (null: in place). Errors: those of
// reading the records.
Task<LookedThrough> look_through(ShardSource& shards, Compute* compute);
Task<LookedThrough> look_through(storage::OpenStep step, Compute* compute);

}  // namespace ckpt::gather
