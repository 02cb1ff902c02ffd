// CopyStreamed: stores a step of a run that lies in no directory, such as one in memory, in a
// directory or bucket, as copy_checkpoint does with one that was published.
//
// The files are those that the job's own flush would write, so that the job can go on from them.
#pragma once

#include <cstdint>
#include <functional>

#include "storage/copy.hpp"
#include "storage/member_writer.hpp"

namespace ckpt::storage {

// `order.sources` is empty, and the manifest has no files.
// `order.done` and `order.is_cancelled` are not called: the streams know. `shard`: of each rank in
// turn. Errors: invalid_argument (the target is another run's, or has another checkpoint of this
// step, or another history), exhausted, cancelled, io, and those of the streams. After an error
// nothing of it is left there.
Task<Copied> copy_streamed(Site target, CopyOrder order,
                           std::function<Task<ShardStream>(std::uint32_t rank)> shard);

}  // namespace ckpt::storage
