#include "node/job_storage.hpp"

#include <fmt/format.h>

#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "node/job.hpp"
#include "storage/publish.hpp"
#include "storage/removal.hpp"
#include "storage/retention.hpp"
#include "storage/step_directory.hpp"

namespace ckpt::node {

void JobStorage::write(const format::FlushOrder& order) {
  if (flush_report_.flush_id == order.flush_id) return;
  const auto work = storage::parse_work_directory(order.work_directory);
  flush_report_ = format::FlushReport{};
  flush_report_.flush_id = order.flush_id;
  if (!attempt_.empty()) over_.push_back(std::move(attempt_));
  attempt_ = order.work_directory;
  if (!work || work->at != order.at) {
    flush_report_.failure = "the work directory's name is not one of ours";
    job_.touch();
    return;
  }
  std::vector<Shard> shards;
  for (std::uint32_t rank = 0; rank < order.writers.size(); ++rank) {
    if (order.writers[rank] == job_.node()) shards.push_back(hold(order, rank));
  }
  asio::co_spawn(job_.context().executor, run_write(order, std::move(shards)), asio::detached);
}

JobStorage::Shard JobStorage::hold(const format::FlushOrder& order, std::uint32_t rank) const {
  Shard shard;
  shard.rank = rank;
  job_.slots().for_each_sealed([&](arena::Slot& slot, bool) {
    if (shard.lease || slot.id() != format::ShardId{order.at, rank}) return;
    shard.lease.emplace(slot.shared_from_this());
    shard.digest = slot.digest();
  });
  return shard;
}

asio::awaitable<void> JobStorage::run_write(format::FlushOrder order, std::vector<Shard> shards) {
  const std::shared_ptr<Job> job = job_.shared_from_this();
  if (!job->is_coordinator()) {
    over_.clear();  // It is the coordinator's to do.
  } else if (!over_.empty()) {
    // First, since the room that they take may be what this one lacks.
    storage::StaleAttempts stale;
    stale.timelines_below = 0;
    stale.names = std::exchange(over_, {});
    stale.with_files_aside = false;
    auto discarded = co_await discard(std::move(stale));
    if (!discarded) log_warning("job={} {}", job->shape().job, discarded.error().message());
  }
  for (Shard& shard : shards) {
    auto written = co_await write_shard(order, shard);
    shard.lease.reset();
    if (flush_report_.flush_id != order.flush_id) co_return;  // A newer flush was ordered.
    if (!written) {
      log_warning("job={} step={} rank={} not flushed: {}", job->shape().job, number(order.at.step),
                  shard.rank, written.error().message());
      flush_report_.failure = written.error().message();
      count_failure(written.error());
      break;
    }
    job->touch();
  }
  job->touch();
}

Task<void> JobStorage::write_shard(format::FlushOrder order, Shard& shard) {
  if (!shard.lease) {
    co_return fail(Errc::not_found, fmt::format("flush step {} rank {}: no copy on this node",
                                                number(order.at.step), shard.rank));
  }
  CKPT_POINT("flush.open_tmp");
  const std::string path = site().at(order.work_directory);
  // Somebody may have removed the whole directory: what is in memory goes into a new one. Or
  // unmounted it: nothing of it goes into the mount point.
  CKPT_CO_CHECK(co_await keep_marker());
  CKPT_CO_CHECK(co_await job_.context().seams.files.make_directory(path));
  storage::ShardSource source;
  source.record = shard.lease->shared_record();
  source.slot = shard.lease->file_spans({0, source.record->bytes});
  WorkMeter::Pass under_way = job_.giving_way().begin(Work::flush);
  auto flushed = co_await flusher_.write_shard(std::move(source), path);
  under_way.end(job_.context().seams.clock.now());
  CKPT_POINT("flush.data_done");
  if (!flushed) {
    // Healed by whoever holds another copy: the next flush takes that one.
    if (flushed.error().code() == Errc::corruption) {
      job_.slots().quarantine({order.at, shard.rank}, shard.digest);
    }
    co_return fail(std::move(flushed).error());
  }
  if (flush_report_.flush_id == order.flush_id) {
    flush_report_.done.push_back({shard.rank, shard.digest});
  }
  co_return Status{};
}

void JobStorage::publish(const agree::Publishing& publishing, Answer answer) {
  if (publishing_id_ == publishing.order.flush_id) return;  // Under way.
  publishing_id_ = publishing.order.flush_id;
  asio::co_spawn(job_.context().executor, run_publish(publishing, std::move(answer)),
                 asio::detached);
}

asio::awaitable<void> JobStorage::run_publish(agree::Publishing publishing, Answer answer) {
  const std::shared_ptr<Job> job = job_.shared_from_this();
  const std::uint64_t flush_id = publishing.order.flush_id;
  const std::string work_directory = publishing.order.work_directory;
  publishing_ = work_directory;
  auto published = co_await publish_and_retain(std::move(publishing));
  publishing_.clear();
  if (published && attempt_ == work_directory) attempt_.clear();
  if (!published) {
    count_failure(published.error());
    auto discarded =
        co_await storage::discard_work_directory(site(), work_directory, "its flush failed");
    if (!discarded) {
      log_warning("job={} {} is left behind: {}", job->shape().job, work_directory,
                  discarded.error().message());
    }
  }
  answer(flush_id, published);
}

Task<void> JobStorage::publish_and_retain(agree::Publishing publishing) {
  CKPT_CO_CHECK(co_await wait_aside_free());
  CKPT_CO_CHECK(co_await keep_marker());
  CKPT_CO_CHECK(co_await keep_history(publishing.order.at));
  storage::PublishOrder order;
  order.work_name = publishing.order.work_directory;
  order.job = job_.shape().job;
  order.run = job_.shape().run;
  order.at = publishing.order.at;
  order.world_size = job_.shape().world_size;
  order.digests = publishing.digests;
  order.members = job_.members();
  for (const Node& node : job_.shape().nodes) order.nodes.push_back(node.name);
  const std::uint32_t ranks = order.world_size;
  CKPT_CO_TRY(const storage::Published published,
              co_await storage::publish(site(), std::move(order)));
  log_info("job={} step={} saved as {} ranks={} bytes={}", job_.shape().job,
           number(publishing.order.at.step), published.name, ranks, published.bytes);
  // From here on the step is durable, whatever becomes of the rest.
  auto catalog = co_await load_catalog(std::nullopt);
  if (!catalog) {
    log_warning("job={} old checkpoints are kept: {}", job_.shape().job, catalog.error().message());
    co_return Status{};
  }
  storage::RetentionOrder retention;
  retention.run = job_.shape().run;
  retention.max_ckpt_num = max_ckpt_num_;
  retention.protected_steps.push_back(publishing.order.at);
  auto deleted = co_await storage::apply_retention(site(), std::move(retention), *catalog);
  if (!deleted) {
    log_warning("job={} old checkpoints are kept: {}", job_.shape().job, deleted.error().message());
  } else {
    for (const storage::Checkpoint& checkpoint : *deleted) {
      log_info("job={} step={} deleted {}: only {} are kept", job_.shape().job,
               number(checkpoint.at.step), checkpoint.name, max_ckpt_num_);
    }
  }
  adopt(std::move(*catalog));
  co_return Status{};
}

void JobStorage::count_failure(const Error& error) {
  ++flush_failures_;
  flush_failure_ = error.message();
}

}  // namespace ckpt::node
