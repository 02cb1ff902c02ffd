#include "node/job_storage.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "node/job.hpp"
#include "os/path.hpp"
#include "storage/member_reader.hpp"
#include "storage/orphans.hpp"
#include "storage/publish.hpp"
#include "storage/removal.hpp"
#include "storage/retention.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_directory.hpp"
#include "storage/timeline_claim.hpp"

namespace ckpt::node {

namespace {

constexpr Duration history_again_after = std::chrono::seconds(5);

flush::FlusherOptions flusher_options(Job& job) {
  flush::FlusherOptions options;
  options.throttle = job.giving_way().throttle(Work::flush);
  options.compute = job.context().seams.compute;
  return options;
}

}  // namespace

JobStorage::JobStorage(Job& job)
    : job_(job),
      flusher_(job.context().seams.files, job.context().seams.clock, flusher_options(job)),
      aside_free_(job.context().seams.clock) {
  if (job.directory().empty()) published_.emplace();
}

JobStorage::~JobStorage() = default;

storage::Site JobStorage::site() const {
  return storage::Site(job_.context().seams.files, job_.context().seams.clock, job_.directory());
}

Task<format::RunId> JobStorage::open(std::string, std::string job) {
  Random& random = job_.context().random;
  storage::RunOrder order;
  order.job = std::move(job);
  order.fresh_run.high = random.next();
  order.fresh_run.low = random.next();
  order.attempt = random.next();
  CKPT_CO_TRY(const format::RunMarker marker,
              co_await storage::open_run_directory(site(), std::move(order)));
  stored_.run = marker.run;
  const auto device = co_await storage::device_of(site());
  if (device) device_ = *device;
  auto timelines = co_await load_history();
  if (timelines) stored_ = std::move(*timelines);
  CKPT_CO_CHECK(co_await refresh_catalog());
  const std::string orphans =
      storage::describe_orphans({checkpoints_, rejected_}, std::optional(marker.run));
  if (!orphans.empty()) co_return fail(storage::orphans_error(job_.directory(), orphans));
  co_return marker.run;
}

void JobStorage::stop() {
  aside_free_.close();
  if (flush_report_.flush_id == 0) return;
  const auto& order = job_.decree().flush;
  if (order) flusher_.give_up(site().at(order->work_directory));
}

// --- what is there ---

Task<void> JobStorage::refresh_catalog() {
  storage::CatalogOptions options;
  options.run = stored_.run;
  CKPT_CO_TRY(storage::Catalog catalog, co_await storage::read_catalog(site(), options));
  for (const storage::Rejected& rejected : catalog.rejected) {
    // The catalog is read again after every save; what was said once is not said again.
    const bool is_known =
        std::any_of(rejected_.begin(), rejected_.end(), [&](const storage::Rejected& known) {
          return known.name == rejected.name && known.reason == rejected.reason;
        });
    if (is_known) continue;
    log_warning("job={} {} is not used: {}", job_.shape().job, rejected.name, rejected.reason);
  }
  checkpoints_ = std::move(catalog.checkpoints);
  rejected_ = std::move(catalog.rejected);
  std::vector<agree::PublishedStep> published;
  for (const storage::Checkpoint& checkpoint : checkpoints_) {
    published.push_back({checkpoint.at, checkpoint.world_size, checkpoint.digests});
  }
  published_ = std::move(published);
  co_return Status{};
}

bool JobStorage::is_published(format::StepId at) const {
  const auto is_it = [&](const agree::PublishedStep& step) { return step.at == at; };
  const auto is_of_it = [&](const format::Damage& damage) { return damage.id.at == at; };
  return published_ && std::any_of(published_->begin(), published_->end(), is_it) &&
         std::none_of(damaged_.begin(), damaged_.end(), is_of_it);
}

std::size_t JobStorage::rejected_count() const {
  return static_cast<std::size_t>(
      std::count_if(rejected_.begin(), rejected_.end(), storage::is_damage));
}

void JobStorage::read_catalog() {
  if (job_.directory().empty()) return;
  must_read_again_ = is_reading_catalog_;
  if (is_reading_catalog_) return;
  is_reading_catalog_ = true;
  asio::co_spawn(job_.context().executor, run_read_catalog(), asio::detached);
}

void JobStorage::forget_catalog() {
  if (job_.directory().empty()) return;
  published_.reset();
  std::erase_if(damaged_,
                [](const format::Damage& damage) { return damage.code != Errc::corruption; });
  read_catalog();
}

asio::awaitable<void> JobStorage::run_read_catalog() {
  const std::shared_ptr<Job> job = job_.shared_from_this();
  do {
    must_read_again_ = false;
    // First: a vote that knows what storage holds must know what of it was abandoned.
    co_await learn_history();
    auto read = co_await refresh_catalog();
    if (!read && read.error().code() == Errc::not_found) {
      // Removed as a whole. It is made again as at the first start, and holds nothing.
      read = co_await keep_marker();
      if (read) read = co_await refresh_catalog();
    }
    unreadable_ = read ? "" : read.error().message();
    if (!read) {
      log_warning("job={} storage cannot be read, memory only: {}", job->shape().job,
                  read.error().message());
      published_.emplace();  // A restore from memory must not wait for a dead disk.
    }
    // Whoever reads it after our end must not miss what we know.
    if (!history_lost().empty()) history_due_.emplace();
  } while (must_read_again_);
  is_reading_catalog_ = false;
  job->touch();
}

// Since the job was opened here, others may have begun timelines that our memory knows nothing of.
asio::awaitable<void> JobStorage::learn_history() {
  auto timelines = co_await load_history();
  if (timelines) job_.learn_history(*timelines);
}

Task<format::Timelines> JobStorage::load_history() {
  auto timelines = co_await storage::load_timelines(site(), stored_.run);
  history_error_ = timelines ? "" : timelines.error().message();
  has_history_ = timelines && !timelines->history.empty();
  if (!timelines) {
    log_error("job={} the history of timelines is lost: {}", job_.shape().job, history_error_);
  }
  co_return timelines;
}

std::string JobStorage::history_lost() const {
  if (!history_error_.empty()) return history_error_;
  // Each start records its timeline before anybody trains on it.
  if (has_history_ || !published_ || published_->empty()) return {};
  return fmt::format("there is none in {}", os::display(job_.directory()));
}

void JobStorage::store_history_later(const Error& error) {
  if (history_complaints_.may_speak()) {
    log_warning("job={} timeline not recorded in the directory, tried again: {}", job_.shape().job,
                error.message());
  }
  history_due_ = job_.context().seams.clock.after(history_again_after);
}

bool JobStorage::is_history_due() const {
  return history_due_ && job_.context().seams.clock.now() >= *history_due_;
}

void JobStorage::note_damage(format::ShardId id, const Error& error) {
  log_warning("job={} step={} rank={} on storage is not used: {}", job_.shape().job,
              number(id.at.step), id.rank, error.message());
  damaged_.insert({id, error.code()});
  job_.touch();
}

std::string JobStorage::name_of(format::StepId at) const {
  for (const storage::Checkpoint& checkpoint : checkpoints_) {
    if (checkpoint.at == at) return checkpoint.name;
  }
  return {};
}

// --- writing ---

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

// Somebody may have cleared the directory, or moved another one there, while we train. Without the
// marker what we publish would belong to nobody; with another's it would be theirs.
Task<void> JobStorage::keep_marker() {
  const std::string& job = job_.shape().job;
  auto marker = co_await storage::read_run_marker(site());
  if (!marker && marker.error().code() == Errc::not_found) {
    storage::RunOrder order;
    order.job = job;
    order.fresh_run = stored_.run;
    order.attempt = job_.context().random.next();
    order.is_running = true;
    order.device = device_;
    marker = co_await storage::open_run_directory(site(), std::move(order));
    if (marker)
      log_warning("job={} {} had lost what says whose it is: made again", job, site().directory());
  }
  if (!marker) co_return fail(std::move(marker).error());
  if (marker->run == stored_.run) co_return Status{};
  co_return fail(
      Errc::invalid_argument,
      fmt::format("publish a step of job {} in {}: by now it is the directory of run {} "
                  "of job {}, and not of run {}",
                  job, site().directory(), to_hex(marker->run), marker->job, to_hex(stored_.run)));
}

// A published step without the record of its timeline would be restored by nobody. Another daemon
// that recorded one at the moment when we did may have written over ours. Of what its timeline has
// abandoned nothing is published, lest its own steps are taken for old ones.
Task<void> JobStorage::keep_history(format::StepId to_publish) {
  auto there = co_await load_history();
  if (there && agree::is_fenced(there->history, to_publish)) {
    co_return fail(
        Errc::invalid_argument,
        fmt::format(
            "publish step {} of timeline {}: it was abandoned by timeline {}, which another "
            "daemon has begun in {}: end one of the two, or give them different directories",
            number(to_publish.step), to_publish.timeline, agree::newest_timeline(there->history),
            os::display(job_.directory())));
  }
  // Later ones are recorded when they begin, or not at all.
  agree::History ours = job_.history();
  std::erase_if(ours, [&](const format::TimelineStart& start) {
    return start.timeline > to_publish.timeline;
  });
  const bool is_whole =
      there && has_history_ && agree::merge(there->history, ours) == there->history;
  if (is_whole) co_return Status{};
  auto stored = co_await store_history(std::move(ours), job_.decree().restore_counts);
  co_return stored;
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
  storage::RetentionOrder retention;
  retention.run = job_.shape().run;
  retention.max_ckpt_num = max_ckpt_num_;
  retention.protected_steps.push_back(publishing.order.at);
  auto deleted = co_await storage::apply_retention(site(), std::move(retention));
  if (!deleted) {
    log_warning("job={} old checkpoints are kept: {}", job_.shape().job, deleted.error().message());
  } else {
    for (const storage::Checkpoint& checkpoint : *deleted) {
      log_info("job={} step={} deleted {}: only {} are kept", job_.shape().job,
               number(checkpoint.at.step), checkpoint.name, max_ckpt_num_);
    }
  }
  auto read = co_await refresh_catalog();
  if (!read) log_warning("job={} {}", job_.shape().job, read.error().message());
  co_return Status{};
}

void JobStorage::discard_older(std::uint64_t timeline, std::string kept) {
  asio::co_spawn(job_.context().executor, run_discard(timeline, std::move(kept)), asio::detached);
}

asio::awaitable<void> JobStorage::run_discard(std::uint64_t timeline, std::string kept) {
  const std::shared_ptr<Job> job = job_.shared_from_this();
  auto discarded = co_await discard_aside();
  if (discarded) {
    storage::StaleAttempts stale;
    stale.timelines_below = timeline;
    stale.is_kept = [kept = std::move(kept)](const std::string& name) { return name == kept; };
    stale.with_files_aside = false;
    discarded = co_await discard(std::move(stale));
  }
  if (discarded) discarded = co_await storage::discard_claims(site(), timeline);
  if (discarded) co_return;
  log_warning("job={} what earlier attempts left stays: {}", job->shape().job,
              discarded.error().message());
}

// What we write aside must not be taken for what was left there: one after the other. And a
// `latest` that is published lies aside for a moment.
Task<void> JobStorage::discard_aside() {
  CKPT_CO_CHECK(co_await wait_aside_free());
  if (!publishing_.empty()) co_return Status{};
  is_aside_in_use_ = true;
  storage::StaleAttempts stale;
  stale.timelines_below = 0;
  auto discarded = co_await discard(std::move(stale));
  is_aside_in_use_ = false;
  aside_free_.notify_all();
  co_return discarded;
}

Task<void> JobStorage::wait_aside_free() {
  while (is_aside_in_use_) {
    const Time soon = job_.context().seams.clock.after(history_again_after);
    CKPT_CO_CHECK(co_await aside_free_.wait_until(soon));
  }
  co_return Status{};
}

Task<void> JobStorage::discard(storage::StaleAttempts stale) {
  // The base may be flushed again by now, which is an attempt of an older timeline.
  stale.is_kept = [this, others = std::move(stale.is_kept)](const std::string& name) {
    const auto& flush = job_.decree().flush;
    return name == publishing_ || (flush && name == flush->work_directory) ||
           (others && others(name));
  };
  CKPT_CO_TRY(const auto removed, co_await storage::discard_stale(site(), std::move(stale)));
  for (const std::string& name : removed)
    log_info("job={} discarded {}: left by an earlier attempt", job_.shape().job, name);
  co_return Status{};
}

Task<std::uint64_t> JobStorage::claim_timeline(format::Start start) {
  CKPT_CO_CHECK(co_await wait_aside_free());
  is_aside_in_use_ = true;
  auto claimed = co_await claim_free_timeline(std::move(start));
  is_aside_in_use_ = false;
  aside_free_.notify_all();
  co_return claimed;
}

Task<std::uint64_t> JobStorage::claim_free_timeline(format::Start start) {
  constexpr int claims_max = 100;  // Whoever takes them all does not mean well.
  storage::Claim claim{start.timeline, start.start_id, 0};
  for (int claims = 0; claims < claims_max; ++claims) {
    claim.attempt = job_.context().random.next();
    CKPT_CO_TRY(const storage::Claimed claimed, co_await storage::claim_timeline(site(), claim));
    if (claimed == storage::Claimed::before) break;
    if (claimed == storage::Claimed::now) {
      // Who has begun it, and recorded it, may have removed his claim by now.
      const auto there = co_await storage::load_timelines(site(), stored_.run);
      if (!there || agree::newest_timeline(there->history) < claim.timeline) break;
      claim.timeline = agree::newest_timeline(there->history);
    }
    ++claim.timeline;
  }
  co_return claim.timeline;
}

// One after the other: each adds to what the one before has written.
Task<void> JobStorage::store_history(agree::History history,
                                     std::vector<format::RestoreCount> counts) {
  // Nothing is known here: what is there may be damaged, but tells more.
  if (history.empty()) {
    history_due_.reset();
    co_return Status{};
  }
  CKPT_CO_CHECK(co_await wait_aside_free());
  is_aside_in_use_ = true;
  auto stored = co_await add_to_history(std::move(history), std::move(counts));
  is_aside_in_use_ = false;
  aside_free_.notify_all();
  co_return stored;
}

Task<void> JobStorage::add_to_history(agree::History history,
                                      std::vector<format::RestoreCount> counts) {
  format::Timelines timelines;
  timelines.run = stored_.run;
  timelines.history = std::move(history);
  timelines.restore_counts = std::move(counts);
  // A coordinator of nodes that we do not see may have begun a timeline since we last read: what it
  // abandoned stays abandoned.
  auto there = co_await storage::load_timelines(site(), stored_.run);
  history_due_.reset();
  if (there) {
    timelines.history = agree::merge(timelines.history, there->history);
    timelines.restore_counts = agree::fill_in(timelines.restore_counts, there->restore_counts);
    if (timelines == *there) {
      // Also when it was another coordinator that mended it.
      has_history_ = !there->history.empty();
      history_error_.clear();
      co_return Status{};
    }
  }
  const std::uint64_t attempt = job_.context().random.next();
  auto stored = co_await storage::store_timelines(site(), std::move(timelines), attempt);
  if (stored) {
    has_history_ = true;
    history_error_.clear();
  } else {
    store_history_later(stored.error());
  }
  co_return stored;
}

void JobStorage::count_failure(const Error& error) {
  ++flush_failures_;
  flush_failure_ = error.message();
}

// --- reading ---

Task<std::shared_ptr<const format::ShardRecord>> JobStorage::record_of(format::ShardId id,
                                                                       Digest digest) {
  if (job_.directory().empty()) co_return fail(Errc::not_found, "the job has no directory");
  // The coordinator may have read the catalog after we did.
  if (name_of(id.at).empty()) CKPT_CO_CHECK(co_await refresh_catalog());
  const std::string name = name_of(id.at);
  if (name.empty()) {
    co_return fail(Errc::not_found, fmt::format("step {} is not on storage", number(id.at.step)));
  }
  CKPT_CO_TRY(const auto manifest, co_await storage::read_manifest(site(), name));
  CKPT_CO_TRY(format::ShardRecord record, format::record_from(*manifest, id.rank));
  if (format::digest_of(record) != digest) {
    co_return fail(Errc::not_found,
                   fmt::format("{} holds another save of step {}", name, number(id.at.step)));
  }
  co_return std::make_shared<const format::ShardRecord>(std::move(record));
}

Task<void> JobStorage::read(std::shared_ptr<const format::ShardRecord> record,
                            std::span<std::byte> target, BytesVerified verified) {
  const std::string name = name_of(record->id.at);
  if (name.empty()) co_return fail(Errc::not_found, "the step is not on storage any more");
  storage::TransferHooks hooks;
  hooks.compute = job_.context().seams.compute;
  hooks.verified = std::move(verified);
  auto read = co_await storage::read_shard(job_.context().seams.files, site().at(name),
                                           std::move(record), target, std::move(hooks));
  co_return read;
}

}  // namespace ckpt::node
