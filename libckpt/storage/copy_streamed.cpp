// How such a step is published:
//   1. The target gets the marker of the run, or has it already.
//   2. A checkpoint of this name there must be the same step; then nothing is left to do.
//   3. Each rank's Chunks come, and are written; then its part.
//   4. The target gets the job's history, and the step is published as a flush publishes one.
#include "storage/copy_streamed.hpp"

#include <fmt/format.h>

#include "base/assert.hpp"
#include "os/path.hpp"
#include "storage/catalog.hpp"
#include "storage/copy_target.hpp"
#include "storage/put_step.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::storage {

namespace {

// Step 2. False: there is none.
Task<bool> is_there(Site target, const CopyOrder& order, std::string name) {
  const auto there = co_await read_manifest(target, name);
  if (!there && there.error().code() == Errc::not_found) co_return false;
  if (there) {
    const Checkpoint one = describe(**there, name), other = describe(*order.manifest, name);
    if (one.run == other.run && one.at == other.at && one.digests == other.digests) co_return true;
  }
  co_return fail(Errc::invalid_argument,
                 fmt::format("copy {} to {}: another checkpoint is there, or something else; it is "
                             "left as it is",
                             order.streamed_from, os::display(target.at(name))));
}

// For a step that was published elsewhere, or will be.
PublishOrder order_of(const format::Manifest& manifest) {
  PublishOrder publish;
  publish.job = manifest.job;
  publish.run = manifest.run;
  publish.at = manifest.at;
  publish.world_size = manifest.world_size;
  publish.members = manifest.members;
  publish.nodes = manifest.nodes;
  return publish;
}

Task<void> add_own_history(Site target, const CopyOrder& order) {
  CKPT_CO_CHECK(co_await add_history(target, order));
  co_return Status();
}

}  // namespace

Task<Copied> copy_streamed(Site target, CopyOrder order,
                           std::function<Task<ShardStream>(std::uint32_t rank)> shard) {
  CKPT_ASSERT(order.manifest != nullptr);
  CKPT_ASSERT(order.sources.empty());
  Copied copied;
  copied.name = step_directory_name(order.manifest->at.step);
  CKPT_CO_CHECK(co_await prepare_target(target, order));
  CKPT_CO_TRY(copied.was_there, co_await is_there(target, order, copied.name));
  if (copied.was_there) {
    CKPT_CO_CHECK(co_await add_history(target, order));
    co_return copied;
  }
  StepToPut step;
  step.publish = order_of(*order.manifest);
  step.attempt = order.attempt;
  step.discarded = "its copy failed";
  step.shard = std::move(shard);
  // Not before: the history alone may abandon all that is there.
  step.before_publish = [&] { return add_own_history(target, order); };
  step.hooks = order.hooks;
  CKPT_CO_CHECK(co_await put_step(target, std::move(step)));
  co_return copied;
}

}  // namespace ckpt::storage
