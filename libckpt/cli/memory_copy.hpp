// MemoryCopy: publishes a step that lies in a job's memory, in a directory or bucket of its own.
//
// The files are those that the job's own flush would write, so that the job can go on from them.
// Memory: one answer of the daemon.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "cli/stored_step.hpp"
#include "storage/copy.hpp"

namespace ckpt::cli {

struct MemoryCopyOrder {
  std::uint64_t attempt = 0;  // Random.
  std::function<bool()> is_cancelled;
  std::function<void(std::uint64_t bytes)> done;  // After so many more.
};

// Errors: invalid_argument (the target is another run's, or has another checkpoint of this step, or
// another history), unavailable (training has gone on), exhausted, cancelled, io. After an error
// nothing of it is left there.
Task<storage::Copied> copy_from_memory(storage::Site target, std::shared_ptr<StoredStep> step,
                                       MemoryCopyOrder order);

}  // namespace ckpt::cli
