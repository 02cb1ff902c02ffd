// PutStep: stores a step whose shards one process brings, and publishes it.
//
//   attempt begun -> each rank's shard -> before_publish -> published, or else discarded
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "storage/member_writer.hpp"
#include "storage/publish_order.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

struct StepToPut {
  PublishOrder publish;       // Without what follows from the attempt: its name, and the digests.
  std::uint64_t attempt = 0;  // Random.
  std::string discarded;      // Goes to the log where it is discarded: "its copy failed".
  // Called for one rank after the other. A stream borrows only from what outlives put_step.
  std::function<Task<ShardStream>(std::uint32_t rank)> shard;
  std::function<Task<void>()> before_publish;  // Called when all shards are stored. Empty: no call.
  TransferHooks hooks;
};

// Errors: those of write_shard, of publish() and of the functions. After an error nothing of the
// attempt is left, unless the log says so.
Task<PublishOutcome> put_step(Site site, StepToPut step);

}  // namespace ckpt::storage
