#include "node/job_storage.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "gather/stored_shards.hpp"
#include "storage/attempt.hpp"
#include "storage/catalog.hpp"
#include "storage/member_reader.hpp"
#include "storage/orphans.hpp"
#include "storage/part_reader.hpp"
#include "storage/run_directory.hpp"

namespace ckpt::node {

namespace {

// Of the shards that this node has restored from storage.
constexpr std::size_t places_max = 4096;

flush::FlusherOptions flusher_options(const Seams& seams, const GivingWay& giving_way) {
  flush::FlusherOptions options;
  options.throttle = giving_way.throttle(Work::flush);
  options.compute = seams.compute;
  return options;
}

}  // namespace

JobStorage::JobStorage(const JobFacts& facts, JobLife& life, SlotTable& slots,
                       GivingWay& giving_way, const Peers& peers, Learned learned)
    : facts_(facts),
      life_(life),
      slots_(slots),
      giving_way_(giving_way),
      peers_(peers),
      learned_(std::move(learned)),
      flusher_(facts.context.seams.files, facts.clock(),
               flusher_options(facts.context.seams, giving_way)),
      aside_free_(facts.clock()),
      hand_free_(facts.clock()) {
  if (facts.directory.empty()) published_.emplace();
}

storage::Site JobStorage::site() const {
  const Seams& seams = facts_.context.seams;
  return storage::Site(seams.files, seams.clock, facts_.directory, seams.compute);
}

Task<format::RunId> JobStorage::open(std::string job, bool with_catalog) {
  Random& random = facts_.context.random;
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
  if (!with_catalog) co_return marker.run;
  CKPT_CO_CHECK(co_await refresh_catalog());
  const std::string orphans =
      storage::describe_orphans({checkpoints_, rejected_}, std::optional(marker.run));
  if (!orphans.empty()) co_return fail(storage::orphans_error(facts_.directory, orphans));
  co_return marker.run;
}

void JobStorage::stop() {
  aside_free_.close();
  hand_free_.close();
  if (flush_report_.flush_id == 0) return;
  const auto& order = facts_.decree.flush;
  if (order) flusher_.give_up(storage::attempt_path(site(), order->work_directory));
}

// --- what is there ---

Task<storage::Catalog> JobStorage::load_catalog(std::optional<Step> only) {
  storage::CatalogOptions options;
  options.run = stored_.run;
  options.only = only;
  options.cache = &cache_;
  auto catalog = co_await storage::read_catalog(site(), options);
  co_return catalog;
}

Task<void> JobStorage::refresh_catalog() {
  CKPT_CO_TRY(storage::Catalog catalog, co_await load_catalog(std::nullopt));
  adopt(std::move(catalog));
  co_return Status{};
}

void JobStorage::adopt(storage::Catalog catalog) {
  checkpoints_ = std::move(catalog.checkpoints);
  note_rejected(std::move(catalog.rejected));
  std::vector<agree::PublishedStep> published;
  for (const storage::Checkpoint& checkpoint : checkpoints_) {
    published.push_back({checkpoint.at, checkpoint.world_size, checkpoint.digests});
  }
  published_ = std::move(published);
}

void JobStorage::note_rejected(std::vector<storage::Rejected> rejected) {
  for (const storage::Rejected& one : rejected) {
    // The catalog is read again after every save; what was said once is not said again.
    const bool is_known =
        std::any_of(rejected_.begin(), rejected_.end(), [&](const storage::Rejected& known) {
          return known.name == one.name && known.reason == one.reason;
        });
    if (is_known) continue;
    log_warning("job={} {} is not used: {}", facts_.shape.job, one.name, one.reason);
  }
  rejected_ = std::move(rejected);
}

// What is known of other steps stays.
Task<void> JobStorage::look_up(format::StepId at) {
  CKPT_CO_TRY(storage::Catalog catalog, co_await load_catalog(at.step));
  std::erase_if(checkpoints_,
                [&](const storage::Checkpoint& known) { return known.at.step == at.step; });
  looked_up_.reset();
  for (storage::Checkpoint& found : catalog.checkpoints) {
    if (found.at == at) looked_up_ = at;
    checkpoints_.push_back(std::move(found));
  }
  for (const storage::Rejected& rejected : catalog.rejected)
    log_warning("job={} {} is not used: {}", facts_.shape.job, rejected.name, rejected.reason);
  co_return Status{};
}

void JobStorage::look_for(format::StepId at) {
  if (facts_.directory.empty() || looking_for_ == at) return;
  looking_for_ = at;
  facts_.context.spawn(run_look_for(at));
}

asio::awaitable<void> JobStorage::run_look_for(format::StepId at) {
  const std::shared_ptr<void> held = life_.hold();
  const Status looked = co_await look_up(at);
  if (looking_for_ == at) looking_for_.reset();
  if (!looked) {
    log_warning("job={} step={} not looked for on storage: {}", facts_.shape.job, number(at.step),
                looked.error().message());
  }
  life_.touch();
}

bool JobStorage::is_published(format::StepId at) const {
  const auto is_it = [&](const agree::PublishedStep& step) { return step.at == at; };
  const auto is_of_it = [&](const format::Damage& damage) { return damage.id.at == at; };
  const bool is_there = looked_up_ == at ||
                        (published_ && std::any_of(published_->begin(), published_->end(), is_it));
  return is_there && std::none_of(damaged_.begin(), damaged_.end(), is_of_it);
}

std::size_t JobStorage::rejected_count() const {
  return static_cast<std::size_t>(
      std::count_if(rejected_.begin(), rejected_.end(), storage::is_damage));
}

void JobStorage::read_catalog() {
  if (facts_.directory.empty()) return;
  must_read_again_ = is_reading_catalog_;
  if (is_reading_catalog_) return;
  is_reading_catalog_ = true;
  facts_.context.spawn(run_read_catalog());
}

void JobStorage::need_catalog() {
  if (!published_ && !is_reading_catalog_) read_catalog();
}

void JobStorage::forget_published() {
  if (!facts_.directory.empty()) published_.reset();
}

void JobStorage::forget_catalog() {
  if (facts_.directory.empty()) return;
  published_.reset();
  looked_up_.reset();
  std::erase_if(damaged_,
                [](const format::Damage& damage) { return damage.code != Errc::corruption; });
  if (is_reading_catalog_) must_read_again_ = true;
  life_.touch();
}

asio::awaitable<void> JobStorage::run_read_catalog() {
  const std::shared_ptr<void> held = life_.hold();
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
      log_warning("job={} storage cannot be read, memory only: {}", facts_.shape.job,
                  read.error().message());
      published_.emplace();  // A restore from memory must not wait for a dead disk.
    }
    // Whoever reads it after our end must not miss what we know.
    if (!history_lost().empty()) history_due_.emplace();
  } while (must_read_again_);
  is_reading_catalog_ = false;
  life_.touch();
}

void JobStorage::note_damage(format::ShardId id, const Error& error) {
  log_warning("job={} step={} rank={} on storage is not used: {}", facts_.shape.job,
              number(id.at.step), id.rank, error.message());
  damaged_.insert({id, error.code()});
  life_.touch();
}

void JobStorage::note_if_damaged(format::ShardId id, const Error& error, bool was_chosen) {
  const Errc code = error.code();
  const bool is_damage = code == Errc::corruption || code == Errc::io;
  if (is_damage || (was_chosen && code == Errc::not_found)) note_damage(id, error);
}

std::string JobStorage::name_of(format::StepId at) const {
  for (const storage::Checkpoint& checkpoint : checkpoints_) {
    if (checkpoint.at == at) return checkpoint.name;
  }
  return {};
}

// Somebody may have cleared the directory, or moved another one there, while we train. Without the
// marker what we publish would belong to nobody; with another's it would be theirs.
Task<void> JobStorage::keep_marker() {
  const std::string& job = facts_.shape.job;
  auto marker = co_await storage::read_run_marker(site());
  if (!marker && marker.error().code() == Errc::not_found) {
    storage::RunOrder order;
    order.job = job;
    order.fresh_run = stored_.run;
    order.attempt = facts_.context.random.next();
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

// --- reading ---

Task<std::shared_ptr<const format::ShardRecord>> JobStorage::record_of(format::ShardId id,
                                                                       Digest digest) {
  if (facts_.directory.empty()) co_return fail(Errc::not_found, "the job has no directory");
  const std::string known = name_of(id.at);
  if (!known.empty()) {
    auto record = co_await record_in(known, id, digest);
    // Else it was saved again since we looked, maybe under another name.
    if (record || record.error().code() != Errc::not_found) co_return record;
  }
  CKPT_CO_CHECK(co_await look_up(id.at));
  const std::string name = name_of(id.at);
  if (name.empty()) {
    co_return fail(Errc::not_found, fmt::format("step {} is not on storage", number(id.at.step)));
  }
  auto record = co_await record_in(name, id, digest);
  co_return record;
}

Task<std::shared_ptr<const format::ShardRecord>> JobStorage::record_in(std::string name,
                                                                       format::ShardId id,
                                                                       Digest digest) {
  CKPT_CO_TRY(const auto manifest, co_await storage::read_manifest(site(), name));
  CKPT_CO_TRY(const auto shard, format::shard_of(*manifest, id.rank));
  if (shard.record_digest != digest) {
    co_return fail(Errc::not_found,
                   fmt::format("{} holds another save of step {}", name, number(id.at.step)));
  }
  if (places_.size() >= places_max)
    std::erase_if(places_, [&](const auto& known) { return known.first.at != id.at; });
  places_.insert_or_assign(id, storage::ShardPlace(shard.folder, shard.files));
  auto record = co_await storage::read_record(facts_.context.seams.files, site().at(name), manifest,
                                              id.rank, facts_.context.seams.compute);
  co_return record;
}

storage::ShardPlace JobStorage::files_of(const std::string& name, format::ShardId id) const {
  storage::ShardPlace place(site().at(name));
  const auto known = places_.find(id);
  if (known == places_.end()) return place;
  if (!known->second.directory.empty())
    place.directory = os::join(place.directory, known->second.directory);
  place.stored = known->second.stored;
  return place;
}

Task<void> JobStorage::read(std::shared_ptr<const format::ShardRecord> record,
                            std::span<std::byte> target, BytesVerified verified) {
  const std::string name = name_of(record->id.at);
  if (name.empty()) co_return fail(Errc::not_found, "the step is not on storage any more");
  storage::TransferHooks hooks;
  hooks.compute = facts_.context.seams.compute;
  hooks.verified = std::move(verified);
  storage::ShardPlace place = files_of(name, record->id);
  auto read = co_await storage::read_shard(facts_.context.seams.files, std::move(place),
                                           std::move(record), target, std::move(hooks));
  co_return read;
}

Task<void> JobStorage::read_chunks(std::shared_ptr<const format::ShardRecord> record,
                                   std::vector<std::size_t> chunks,
                                   gather::ShardSource::TakeChunk take,
                                   const storage::TransferHooks& hooks) {
  const std::string name = name_of(record->id.at);
  if (name.empty()) co_return fail(Errc::not_found, "the step is not on storage");
  storage::ShardPlace place = files_of(name, record->id);
  auto read = co_await gather::read_stored_chunks(facts_.context.seams.files, std::move(place),
                                                  std::move(record), std::move(chunks),
                                                  std::move(take), hooks);
  co_return read;
}

}  // namespace ckpt::node
