#include "storage/put_step.hpp"

#include "base/assert.hpp"
#include "base/log.hpp"
#include "storage/attempt.hpp"
#include "storage/publish.hpp"
#include "storage/removal.hpp"

namespace ckpt::storage {

namespace {

Task<PublishOutcome> put_in_attempt(Site site, StepToPut& step) {
  PublishOrder& order = step.publish;
  const std::string directory = attempt_path(site, order.work_name);
  for (std::uint32_t rank = 0; rank < order.world_size; ++rank) {
    CKPT_CO_TRY(ShardStream shard, co_await step.shard(rank));
    CKPT_ASSERT(shard.record->id.rank == rank);
    CKPT_ASSERT(shard.record->id.at == order.at);
    CKPT_CO_TRY(const format::ShardFlushed flushed,
                co_await write_shard(site.files(), std::move(shard), directory, step.hooks));
    order.digests.push_back(flushed.digest);
  }
  if (step.before_publish) CKPT_CO_CHECK(co_await step.before_publish());
  auto published = co_await publish(site, std::move(order));
  co_return published;
}

}  // namespace

Task<PublishOutcome> put_step(Site site, StepToPut step) {
  CKPT_ASSERT(step.publish.digests.empty());
  CKPT_CO_TRY(step.publish.work_name,
              co_await make_work_directory(site, step.publish.at, step.attempt));
  const std::string work_name = step.publish.work_name;
  auto published = co_await put_in_attempt(site, step);
  if (published) co_return published;
  const Status discarded = co_await discard_work_directory(site, work_name, step.discarded);
  if (!discarded) log_warning("{} is left behind: {}", work_name, discarded.error().message());
  co_return published;
}

}  // namespace ckpt::storage
