#include "node/job_storage.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/within.hpp"
#include "storage/orphans.hpp"
#include "storage/rewrite.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_attempt.hpp"

namespace ckpt::node {

namespace {

// A start or a restore that the first place can serve waits for the second one only so long.
constexpr Duration second_patience = std::chrono::seconds(5);
// The same, where it did not answer the last time: each read would wait anew.
constexpr Duration late_patience = std::chrono::seconds(1);

flush::FlusherOptions flusher_options(const Seams& seams, const GivingWay& giving_way) {
  flush::FlusherOptions options;
  options.throttle = giving_way.throttle(BackgroundWork::flush);
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
      flusher_(facts.clock(), flusher_options(facts.context.seams, giving_way)),
      flush_memory_(facts.shape.job),
      reads_(facts, places_),
      coverage_(facts, life, reads_),
      failures_(facts),
      aside_free_(facts.clock()),
      hand_free_(facts.clock()) {
  if (facts.directory.empty()) {
    published_.emplace();
    return;
  }
  places_.emplace_back(facts, facts.directory);
  if (!facts.second) return;
  places_.emplace_back(facts, facts.second->directory);
  second_.emplace(facts, life, giving_way, places_[0], places_[1], hooks_of_second());
}

void JobStorage::set_retention(storage::RetentionRule rule) {
  if (second_) second_->set_retention(rule);
  retention_ = std::move(rule);
}

void JobStorage::finish_copies() {
  if (second_) second_->finish();
}

storage::Site JobStorage::site() const {
  const Seams& seams = facts_.context.seams;
  return storage::Site(seams.files, seams.clock, facts_.directory, seams.compute);
}

Time JobStorage::second_deadline() const {
  if (opening_until_) return *opening_until_;
  return facts_.clock().after(is_second_late_ ? late_patience : second_patience);
}

// All that it asks of the second place is over in one time, so that a trainer that opens the job
// does not give up before.
Task<format::RunId> JobStorage::open(std::string job, bool with_catalog) {
  opening_until_ = facts_.clock().after(second_patience);
  auto opened = co_await open_places(std::move(job), with_catalog);
  opening_until_.reset();
  co_return opened;
}

Task<format::RunId> JobStorage::open_places(std::string job, bool with_catalog) {
  Random& random = facts_.context.random;
  storage::RunOrder order;
  order.job = std::move(job);
  order.fresh_run.high = random.next();
  order.fresh_run.low = random.next();
  order.attempt = random.next();
  order.requires_mount = facts_.context.options.require_mount;
  CKPT_CO_TRY(const format::RunMarker marker, co_await open_marker(std::move(order)));
  stored_.run = marker.run;
  for (StoredPlace& place : places_) place.set_run(marker.run);
  co_await note_mounted();
  auto timelines = co_await load_histories();
  if (timelines) stored_ = std::move(*timelines);
  if (!with_catalog) co_return marker.run;
  CKPT_CO_CHECK(co_await refresh_catalog());
  const StoredPlace& first = places_.front();
  co_await mend_latest();
  const std::string orphans =
      storage::describe_orphans({first.checkpoints(), first.rejected()}, std::optional(marker.run));
  if (!orphans.empty()) co_return fail(storage::orphans_error(facts_.directory, orphans));
  co_return marker.run;
}

// With two places, the run is that of the one which has a marker: a first place that is new, as on
// another machine, goes on with the run of the second.
Task<format::RunMarker> JobStorage::open_marker(storage::RunOrder order) {
  format::RunId of_second;
  bool has_second = false;
  if (second_) {
    const auto known = co_await storage::read_run_marker(site());
    if (!known && known.error().code() != Errc::not_found) co_return fail(Error(known.error()));
    if (known) order.fresh_run = known->run;
    auto second = co_await open_second_marker(order, known.has_value());
    if (!second && second.error().code() != Errc::unavailable) co_return second;
    if (!second && !known) co_return second;
    has_second = second.has_value();
    if (second) order.fresh_run = of_second = second->run;
    if (!second) second_->note_read(fail(std::move(second).error()));
  }
  const std::string job = order.job;
  const auto is_missing = co_await places_.front().is_missing();
  CKPT_CO_TRY(const format::RunMarker marker,
              co_await storage::open_run_directory(site(), std::move(order)));
  if (is_missing && *is_missing) places_.front().note_made();
  if (has_second && marker.run != of_second) {
    co_return fail(Errc::invalid_argument,
                   fmt::format("open the places of job {}: {} has its run {}, and {} its run {}: "
                               "name two places of one run, or new ones",
                               job, facts_.directory, to_hex(marker.run), facts_.second->directory,
                               to_hex(of_second)));
  }
  co_return marker;
}

// Errors: unavailable (it does not answer; `is_known`: the first place has the run, and the job can
// go on without the second), io (it refuses us), and those of storage::open_run_directory.
Task<format::RunMarker> JobStorage::open_second_marker(storage::RunOrder order, bool is_known) {
  const Time deadline = second_deadline();
  auto opened = co_await within(
      facts_.context.executor, facts_.clock(), deadline, "open " + facts_.second->directory,
      storage::open_run_directory(places_[1].site(), std::move(order)), life_.hold());
  if (opened) co_return opened;
  const Errc code = opened.error().code();
  // No waiting mends these: another job's directory, a path that no place has.
  bool is_wrong = code == Errc::invalid_argument || code == Errc::corruption ||
                  code == Errc::unsupported || code == Errc::version_mismatch;
  Error error = std::move(opened).error();
  if (is_wrong && is_known) {  // A file system that is not mounted stops no training.
    const auto marker = co_await storage::read_run_marker(places_[1].site());
    is_wrong = marker || marker.error().code() == Errc::corruption;
  }
  if (is_wrong) co_return fail(std::move(error).context("the second place"));
  // Nor does waiting mend wrong keys; but a job whose first place has its run goes on without.
  const bool is_denied = error.cause() == std::errc::permission_denied;
  if (is_denied && !is_known) co_return fail(std::move(error).context("the second place"));
  if (is_known)  // Our caller names the place.
    co_return fail(Error(Errc::unavailable, error.text(), error.cause()));
  co_return fail(Errc::unavailable,
                 "the second place, which may hold the job's checkpoints: the first one is new: " +
                     error.message());
}

void JobStorage::stop() {
  if (second_) second_->stop();
  aside_free_.close();
  hand_free_.close();
  if (flush_report_.flush_id == 0) return;
  const auto& order = facts_.decree.flush;
  if (order) flusher_.give_up(storage::StepAttempt(site(), order->work_directory));
}

// --- what is there ---

Task<void> JobStorage::refresh_catalog() {
  const GoneSteps::Listing listing = places_.front().begin_listing();
  CKPT_CO_TRY(storage::Catalog catalog, co_await places_.front().load(std::nullopt));
  places_.front().look_for_gone(catalog, listing);
  CKPT_CO_CHECK(co_await refresh_second());
  adopt(std::move(catalog), listing);
  co_return Status{};
}

// It never fails: an unreadable place is left out, and unreadable() says so.
Task<void> JobStorage::refresh_second() {
  unreadable_.clear();
  if (!second_) co_return Status{};
  const Time deadline = second_deadline();
  const GoneSteps::Listing listing = places_[1].begin_listing();
  auto catalog = co_await within(facts_.context.executor, facts_.clock(), deadline,
                                 "list " + facts_.second->directory, places_[1].load(std::nullopt),
                                 life_.hold());
  is_second_late_ = !catalog && catalog.error().code() == Errc::unavailable;
  if (!catalog && catalog.error().code() == Errc::not_found) catalog = storage::Catalog();
  if (catalog) {
    places_[1].adopt(std::move(*catalog), listing);
    second_->note_read(Status{});
    co_return Status{};
  }
  unreadable_ = catalog.error().message();
  places_[1].forget();
  second_->note_read(fail(std::move(catalog).error()));
  co_return Status{};
}

void JobStorage::adopt(storage::Catalog catalog, GoneSteps::Listing listing) {
  places_.front().adopt(std::move(catalog), listing);
  list_published();
}

// A step that lies in both places is one step. The nearest place says what it is.
void JobStorage::list_published() {
  std::vector<agree::PublishedStep> published;
  for (const StoredPlace& place : places_) {
    for (const storage::Checkpoint& checkpoint : place.checkpoints()) {
      const bool is_known =
          std::ranges::find(published, checkpoint.at, &agree::PublishedStep::at) != published.end();
      if (!is_known)
        published.push_back({checkpoint.at, checkpoint.world_size, checkpoint.digests});
    }
  }
  std::ranges::sort(published, {}, &agree::PublishedStep::at);
  published_ = std::move(published);
}

void JobStorage::look_for(format::StepId at) {
  if (facts_.directory.empty() || looking_for_ == at) return;
  looking_for_ = at;
  facts_.context.spawn(run_look_for(at));
}

asio::awaitable<void> JobStorage::run_look_for(format::StepId at) {
  const std::shared_ptr<void> held = life_.hold();
  const Status looked = co_await reads_.look_up(at);
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
  const bool is_there = reads_.looked_up() == at ||
                        (published_ && std::any_of(published_->begin(), published_->end(), is_it));
  return is_there && std::none_of(damaged_.begin(), damaged_.end(), is_of_it);
}

void JobStorage::describe_rejected(agree::ClusterView& view) const {
  view.damaged_published = 0;
  view.misplaced_published = 0;
  view.newest_damaged.reset();
  view.damaged_steps.clear();
  view.unreadable_steps.clear();
  for (const StoredPlace& place : places_) {
    view.damaged_published +=
        static_cast<std::size_t>(std::ranges::count_if(place.rejected(), storage::is_damage));
    view.misplaced_published += static_cast<std::size_t>(
        std::ranges::count_if(place.rejected(), &storage::Rejected::is_misplaced));
    for (const storage::Rejected& rejected : place.rejected()) {
      const auto step = storage::step_of(rejected);
      if (step && storage::is_damage(rejected) && !rejected.is_misplaced) {
        view.newest_damaged = std::max(view.newest_damaged, step);
        if (rejected.at) view.damaged_steps.push_back(*rejected.at);
      }
      if (!step || !storage::is_unreadable(rejected)) continue;
      const bool is_elsewhere = std::ranges::any_of(places_, [&](const StoredPlace& other) {
        return std::ranges::any_of(other.checkpoints(), [&](const storage::Checkpoint& known) {
          return known.at.step == *step && !facts_.is_fenced(known.at);
        });
      });
      if (!is_elsewhere) view.unreadable_steps.push_back({*step, rejected.reason});
    }
  }
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
  if (facts_.directory.empty()) return;
  published_.reset();
  places_.front().forget_for_gone();
}

void JobStorage::forget_catalog() {
  if (facts_.directory.empty()) return;
  published_.reset();
  reads_.forget();
  std::erase_if(damaged_,
                [](const format::Damage& damage) { return damage.code != Errc::corruption; });
  if (is_reading_catalog_) must_read_again_ = true;
  life_.touch();
}

// Damage keeps retention from deleting an abandoned step, which no restore reads again. Memory here
// heals the steps that it has. A restore finds all other damage again when it meets it.
void JobStorage::forget_verdicts() {
  const auto may_be_mended = [&](format::ShardId id) {
    bool is_held = false;
    slots_.for_each_sealed([&](arena::Slot& slot, bool) { is_held = is_held || slot.id() == id; });
    return !is_held && !facts_.is_fenced(id.at);
  };
  reads_.forget_damage(may_be_mended);
  std::erase_if(damaged_, [&](const format::Damage& damage) { return may_be_mended(damage.id); });
  forget_catalog();
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
    if (!read) {
      // Also when the first place is gone, the second one may have what is needed.
      places_.front().forget();
      (void)co_await refresh_second();  // It never fails.
      unreadable_ = read.error().message();
      log_warning("job={} storage cannot be read, memory only: {}", facts_.shape.job,
                  read.error().message());
      list_published();  // A restore from memory must not wait for a dead disk.
    }
    // A reader after our end must not miss what we know.
    if (!history_lost().empty()) history_due_.emplace();
  } while (must_read_again_);
  is_reading_catalog_ = false;
  if (second_) second_->wake();
  life_.touch();
}

void JobStorage::note_damage(format::ShardId id, const Error& error) {
  log_warning("job={} step={} rank={} on storage is not used: {}", facts_.shape.job,
              number(id.at.step), id.rank, error.message());
  // A sector that the disk cannot read any more is lost as one with wrong bytes is: nobody can
  // allow it again, and a job that starts again at night is not to wait until somebody names an
  // older step.
  const bool is_lost = error.cause() == std::errc::io_error;
  damaged_.insert({id, is_lost ? Errc::corruption : error.code()});
  flush_memory_.forget(id.rank);
  life_.touch();
}

void JobStorage::note_if_damaged(format::ShardId id, const Error& error, bool was_chosen) {
  const Errc code = error.code();
  const bool is_damage = code == Errc::corruption || code == Errc::io;
  if (is_damage || (was_chosen && code == Errc::not_found)) note_damage(id, error);
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
    order.mounted = mounted_;
    marker = co_await storage::open_run_directory(site(), std::move(order));
    if (marker) {
      log_warning("job={} {} had lost what says whose it is: made again", job, site().directory());
      life_.touch();
    }
  }
  if (!marker) co_return fail(std::move(marker).error());
  if (marker->run == stored_.run) {
    co_await note_mounted();  // By now it may be another mount, with all that was there.
    // Now, and not when the next step is stored: that may be long after.
    co_await places_.front().look_for_newest();
    co_return Status{};
  }
  failures_.refused();
  co_return fail(Errc::invalid_argument,
                 fmt::format("publish a step of job {} in {}: by now it is the directory of run {} "
                             "of job {}, and not of run {}: no step is stored there; {}",
                             job, site().directory(), to_hex(marker->run), marker->job,
                             to_hex(stored_.run), failures_.way_out()));
}

asio::awaitable<void> JobStorage::note_mounted() {
  const auto there = co_await storage::mounted_at(site());
  if (!there) co_return;
  // If it was unmounted since the marker was read, that was the directory below the mount point.
  const auto marker = co_await storage::read_run_marker(site());
  if (marker && marker->run == stored_.run) mounted_ = *there;
}

// In the first place. The copy in a second one stays as it is.
// Healing moves bytes as a flush does, and gives way to training and to the option's limit as one.
storage::TransferHooks JobStorage::healing_hooks() {
  storage::TransferHooks hooks;
  hooks.compute = facts_.context.seams.compute;
  const std::shared_ptr<Throttle> throttle = giving_way_.throttle(BackgroundWork::flush);
  hooks.before_transfer = [throttle](std::uint64_t bytes) { return throttle->take(bytes); };
  return hooks;
}

Task<void> JobStorage::write_anew(storage::ShardToWrite source) {
  const format::ShardId id = source.record->id;
  StoredPlace& place = places_.front();
  if (place.name_of(id.at).empty()) CKPT_CO_CHECK(co_await place.look_up(id.at));
  std::string name = place.known_name_of(id.at);
  if (name.empty()) co_return fail(Errc::not_found, "the step is not on storage any more");
  source.turn = static_cast<std::uint32_t>(facts_.context.random.next() >> 33) + 1;
  source.compression = compression_;
  storage::TransferHooks hooks = healing_hooks();
  CKPT_CO_CHECK(co_await storage::rewrite_shard(site(), std::move(name), std::move(source),
                                                std::move(hooks)));
  std::erase_if(damaged_, [&](const format::Damage& damage) { return damage.id == id; });
  reads_.written_anew(id);
  co_return Status{};
}

}  // namespace ckpt::node
