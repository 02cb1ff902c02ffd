#include "node/job_storage.hpp"

#include <fmt/format.h>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "storage/latest.hpp"
#include "storage/parallel.hpp"
#include "storage/publish.hpp"
#include "storage/removal.hpp"
#include "storage/retention.hpp"
#include "storage/step_attempt.hpp"

namespace ckpt::node {

namespace {

// For storage that has not answered yet since the flush was ordered.
constexpr Duration copies_held_for = std::chrono::seconds(3);

}  // namespace

void JobStorage::write(const format::FlushOrder& order) {
  const bool is_new = flush_report_.flush_id != order.flush_id;
  if (is_new) {
    begin_flush(order);
  } else if (flush_writers_ == order.writers) {
    return;
  }
  take_parts(order);
  // Also without a part for us: the coordinator then removes what earlier attempts left.
  if (is_writing_ || (to_write_.empty() && !is_new)) return;
  is_writing_ = true;
  facts_.context.spawn(run_write(order));
  if (is_new) facts_.context.spawn(let_go(order.flush_id));
}

// Copies are held from the order on: a newer commit must not free them. A flush that hangs
// must not take more Slots from training than its own: a second one holds nothing before the first
// has ended. A part that was given to us later is held when it is written, for it may wait long.
void JobStorage::take_parts(const format::FlushOrder& order) {
  flush_writers_ = order.writers;
  const bool is_named_well = storage::step_of_attempt(order.work_directory) == order.at;
  for (std::uint32_t rank = 0; rank < order.writers.size(); ++rank) {
    const format::FlushWriter& writer = order.writers[rank];
    if (writer.node != facts_.node || !taken_.insert({rank, writer.turn}).second) continue;
    const Part part{rank, writer.turn};
    if (is_named_well) {
      to_write_.push_back(Shard{part, {}, {}, false});
      if (parts_in_hand_ == 0 && part.turn == 0) hold(order.at, to_write_.back());
    } else {
      fail_part(part,
                Error(Errc::invalid_argument, "the work directory's name is not one of ours"));
    }
  }
}

void JobStorage::begin_flush(const format::FlushOrder& order) {
  flush_report_ = format::FlushReport{};
  flush_report_.flush_id = order.flush_id;
  flush_writers_.clear();
  to_write_.clear();
  taken_.clear();
  is_writing_ = false;  // A writer for an older flush ends by itself.
  has_storage_answered_ = false;
  if (!attempt_.empty()) over_.push_back(std::move(attempt_));
  attempt_ = order.work_directory;
}

void JobStorage::hold(format::StepId at, Shard& shard) const {
  slots_.for_each_sealed([&](arena::Slot& slot, bool is_own) {
    if (shard.lease || slot.id() != format::ShardId{at, shard.part.rank}) return;
    CKPT_ASSERT(slot.record() != nullptr);
    shard.lease.emplace(slot.shared_from_this());
    shard.digest = slot.digest();
    shard.is_own = is_own;
  });
}

// False: the flush is over, or the part was given to another node.
bool JobStorage::is_ours(std::uint64_t flush_id, Part part) const {
  return flush_report_.flush_id == flush_id && part.rank < flush_writers_.size() &&
         flush_writers_[part.rank] == format::FlushWriter{facts_.node, part.turn};
}

void JobStorage::fail_part(Part part, const Error& error) {
  std::string why = storage::with_room(error, retention_, facts_.directory).message();
  flush_report_.failed.push_back({part.rank, part.turn, std::move(why)});
  count_failure(error);
  life_.touch();
}

// Not for each Chunk: a report that changes is sent to the coordinator.
void JobStorage::note_progress() {
  Clock& clock = facts_.clock();
  if (clock.now() < progress_due_) return;
  progress_due_ = clock.after(facts_.context.options.flush_stalled_after / 8);
  ++flush_report_.progress;
  life_.touch();
}

asio::awaitable<void> JobStorage::run_write(format::FlushOrder order) {
  const std::shared_ptr<void> held = life_.hold();
  if (!peers_.is_coordinator()) {
    over_.clear();  // It is the coordinator's to do.
  } else if (!over_.empty()) {
    // First, since the room that they take may be what this one lacks.
    storage::StaleAttempts stale;
    stale.timelines_below = 0;
    stale.names = std::exchange(over_, {});
    stale.with_files_aside = false;
    auto discarded = co_await discard(std::move(stale));
    if (!discarded) log_warning("job={} {}", facts_.shape.job, discarded.error().message());
  }
  while (parts_in_hand_ > 0 && flush_report_.flush_id == order.flush_id) {  // For an older flush.
    auto woken = co_await hand_free_.wait_until(no_deadline);
    if (!woken) co_return;
  }
  const Status ready = co_await begin_attempt(order.work_directory);
  if (flush_report_.flush_id != order.flush_id) co_return;
  has_storage_answered_ = ready.has_value();  // Else the write fails, and says so.
  for (Shard& shard : to_write_) {
    if (shard.part.turn == 0) hold(order.at, shard);
  }
  std::function<Task<void>(std::size_t)> write_some = [&](std::size_t) {
    return write_parts(order);
  };
  constexpr std::size_t at_once = flush::Flusher::ranks_in_flight;
  // Again: one may have become ours when all had ended, and before we have heard of it.
  while (flush_report_.flush_id == order.flush_id && !to_write_.empty()) {
    const Status ended = co_await storage::for_each_parallel(at_once, at_once, write_some);
    if (!ended) co_return;  // The daemon ends. The parts that failed are in the report.
  }
  if (flush_report_.flush_id == order.flush_id) is_writing_ = false;
  hand_free_.notify_all();
}

// One part after another, until there is none: also those that become ours meanwhile.
Task<void> JobStorage::write_parts(format::FlushOrder order) {
  while (flush_report_.flush_id == order.flush_id && !to_write_.empty()) {
    Shard shard = std::move(to_write_.front());
    to_write_.pop_front();
    const Part part = shard.part;
    if (!is_ours(order.flush_id, part)) continue;  // Given to another node while it waited.
    CKPT_ASSERT(is_writing_);
    ++parts_in_hand_;
    auto written = co_await write_shard(order, std::move(shard));
    --parts_in_hand_;
    CKPT_ASSERT(parts_in_hand_ >= 0);
    hand_free_.notify_all();
    if (!written && is_ours(order.flush_id, part)) {
      log_warning("job={} step={} rank={} not flushed: {}", facts_.shape.job, number(order.at.step),
                  part.rank, written.error().message());
      fail_part(part, written.error());
    }
    life_.touch();
  }
  co_return Status();
}

// Training needs the Slots of other nodes' copies: there is one of each rank to spare. Storage that
// does not answer must not keep them.
asio::awaitable<void> JobStorage::let_go(std::uint64_t flush_id) {
  const std::shared_ptr<void> held = life_.hold();
  const Clock& clock = facts_.clock();
  const Time deadline = clock.after(copies_held_for);
  while (clock.now() < deadline) {
    auto woken = co_await hand_free_.wait_until(deadline);
    if (!woken) co_return;
  }
  if (flush_report_.flush_id != flush_id || has_storage_answered_) co_return;
  for (Shard& shard : to_write_) {
    if (!shard.is_own) shard.lease.reset();
  }
  life_.touch();
}

// Somebody may have removed the whole directory: the steps in memory go into a new one. Or
// unmounted it: nothing of it goes into the mount point.
Task<void> JobStorage::begin_attempt(std::string name) {
  CKPT_CO_CHECK(co_await keep_marker());
  const storage::StepAttempt attempt(site(), std::move(name));
  Status begun = co_await storage::begin(attempt);
  co_return begun;
}

Task<void> JobStorage::write_shard(format::FlushOrder order, Shard shard) {
  CKPT_POINT("flush.open_tmp");
  const storage::StepAttempt attempt(site(), order.work_directory);
  CKPT_CO_CHECK(co_await begin_attempt(order.work_directory));
  hold(order.at, shard);
  if (!shard.lease) {
    co_return fail(Errc::not_found, fmt::format("flush step {} rank {}: no copy on this node",
                                                number(order.at.step), shard.part.rank));
  }
  storage::ShardToWrite source;
  source.record = shard.lease->shared_record();
  source.slot = shard.lease->file_spans({0, source.record->bytes});
  source.turn = shard.part.turn;
  source.compression = compression_;
  source.copies = shard.lease->slot().copies();
  const format::ShardId id = source.record->id;
  if (!compression_) source.sharing = flush_memory_.begin(site(), id, damaged_);
  const Part part = shard.part;
  flush::WriteWatch watch;
  watch.is_wanted = [this, part, flush_id = order.flush_id] { return is_ours(flush_id, part); };
  watch.progressed = [this, flush_id = order.flush_id] {
    if (flush_report_.flush_id == flush_id) note_progress();
  };
  WorkMeter::Pass under_way = giving_way_.begin(BackgroundWork::flush);
  auto flushed = co_await flusher_.write_shard(source, attempt, std::move(watch));
  if (source.sharing && flushed) flush_memory_.keep(id, *source.sharing);
  if (flushed) {
    // Comparing copies must not cost the step.
    auto noted = co_await storage::note_copies(attempt, std::move(source));
    if (!noted)
      log_warning("job={} step={} rank={} its copies are not compared: {}", facts_.shape.job,
                  number(order.at.step), part.rank, noted.error().message());
  }
  under_way.end(facts_.clock().now());
  CKPT_POINT("flush.data_done");
  if (!flushed) {
    // A node that holds another copy heals it, and writes the part.
    if (flushed.error().code() == Errc::corruption) slots_.quarantine(*shard.lease);
    co_return fail(std::move(flushed).error());
  }
  // Also when another node writes the part by now: the turn that is done first counts.
  if (flush_report_.flush_id == order.flush_id) {
    flush_report_.done.push_back({part.rank, part.turn, shard.digest});
  }
  co_return Status{};
}

void JobStorage::publish(const agree::Publishing& publishing, OnPublished answer) {
  if (publishing_id_ == publishing.order.flush_id) return;  // Under way.
  publishing_id_ = publishing.order.flush_id;
  facts_.context.spawn(run_publish(publishing, std::move(answer)));
}

asio::awaitable<void> JobStorage::run_publish(agree::Publishing publishing, OnPublished answer) {
  const std::shared_ptr<void> held = life_.hold();
  const std::uint64_t flush_id = publishing.order.flush_id;
  const std::string work_directory = publishing.order.work_directory;
  const std::uint64_t timeline = failures_.running_timeline();
  const bool had_several_writers = publishing.had_several_writers;
  CKPT_ASSERT(!work_directory.empty());
  publishing_ = work_directory;
  failures_.publication_began();
  auto published = co_await publish_and_retain(std::move(publishing));
  publishing_.clear();
  hand_free_.notify_all();
  failures_.publication_ended(published, timeline);
  // A writer that hung may make the directory again: it is looked for before the next flush.
  if (published && attempt_ == work_directory && !had_several_writers) attempt_.clear();
  if (!published) {
    published = fail(storage::with_room(published.error(), retention_, facts_.directory));
    count_failure(published.error());
    auto discarded =
        co_await storage::discard_work_directory(site(), work_directory, "its flush failed");
    if (!discarded) {
      log_warning("job={} {} is left behind: {}", facts_.shape.job, work_directory,
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
  order.job = facts_.shape.job;
  order.run = facts_.shape.run;
  order.at = publishing.order.at;
  // Not the job's: of a restored step, those of the ranks that made it.
  order.world_size = static_cast<std::uint32_t>(publishing.digests.size());
  order.digests = publishing.digests;
  if (publishing.had_several_writers) {
    for (const format::FlushWriter& writer : publishing.order.writers)
      order.turns.push_back(writer.turn);
  }
  order.members = facts_.members;
  for (const Node& node : facts_.shape.nodes) order.nodes.push_back(node.name);
  const std::uint32_t ranks = order.world_size;
  CKPT_CO_TRY(const storage::PublishOutcome published,
              co_await storage::publish(site(), std::move(order)));
  log_info("job={} step={} saved as {} ranks={} bytes={}", facts_.shape.job,
           number(publishing.order.at.step), published.name, ranks, published.bytes);
  // From here on the step is durable, whatever becomes of the rest.
  note_differences(publishing.order.at, published.copies);
  coverage_.published(publishing.order.at, published.layouts);
  co_await places_.front().record_retention(retention_);
  const GoneSteps::Listing listing = places_.front().begin_listing();
  auto catalog = co_await places_.front().load(std::nullopt);
  if (!catalog) {
    log_warning("job={} old checkpoints are kept: {}", facts_.shape.job, catalog.error().message());
    co_return Status{};
  }
  places_.front().look_for_gone(*catalog, listing);
  if (const auto missed = storage::first_not_stored(retention_.keep_every, catalog->checkpoints,
                                                    publishing.order.at)) {
    log_warning(
        "job={} step={} is one that keep_every keeps for good, and is not stored: it was "
        "not captured, or storage was still writing an older one when step {} came",
        facts_.shape.job, number(*missed), number(publishing.order.at.step));
  }
  storage::RetentionOrder retention;
  retention.run = facts_.shape.run;
  retention.rule = retention_;
  retention.protected_steps.push_back(publishing.order.at);
  retention.damaged = std::move(publishing.damaged);
  co_await coverage_.protect(places_.front(), catalog->checkpoints, retention);
  if (second_ && second_->copying()) retention.protected_steps.push_back(*second_->copying());
  places_.front().forget_for_gone();  // Some of it goes now, and listings may show that already.
  auto deleted = co_await storage::apply_retention(site(), std::move(retention), *catalog);
  if (!deleted) {
    log_warning("job={} old checkpoints are kept: {}", facts_.shape.job, deleted.error().message());
  } else {
    for (const storage::Checkpoint& checkpoint : *deleted) {
      log_info("job={} step={} deleted {}: {}", facts_.shape.job, number(checkpoint.at.step),
               checkpoint.name, storage::deletion_reason(checkpoint, retention_));
    }
  }
  // Newer than any listing that began meanwhile.
  adopt(std::move(*catalog), places_.front().begin_listing());
  co_await mend_latest();
  if (second_) second_->published();
  co_return Status{};
}

// A daemon that was killed, or somebody who removed steps by hand, may leave it dangling.
asio::awaitable<void> JobStorage::mend_latest() {
  const std::uint64_t attempt = facts_.context.random.next();
  const auto mended =
      co_await storage::mend_latest(site(), stored_.run, places_.front().catalog(), attempt);
  if (!mended)
    log_warning("job={} `latest` in {} stays: {}", facts_.shape.job, facts_.directory,
                mended.error().message());
}

SecondPlace::Hooks JobStorage::hooks_of_second() {
  SecondPlace::Hooks hooks;
  hooks.may_copy = [this] { return peers_.is_coordinator(); };
  hooks.wait_for_flush = [this](Time deadline) { return wait_for_flush(deadline); };
  hooks.catalog_changed = [this] {
    if (published_) list_published();
  };
  hooks.protect = [this](const std::vector<storage::Checkpoint>& there,
                         storage::RetentionOrder& order) {
    return coverage_.protect(places_.back(), there, order);
  };
  return hooks;
}

// Also between the parts of one flush, and while it is published.
Task<void> JobStorage::wait_for_flush(Time deadline) {
  while (is_writing_ || parts_in_hand_ > 0 || !publishing_.empty()) {
    CKPT_CO_TRY(const bool is_notified, co_await hand_free_.wait_until(deadline));
    if (!is_notified) break;
  }
  co_return Status{};
}

void JobStorage::note_differences(format::StepId at, const storage::ComparedCopies& copies) {
  if (copies.has_left_out) {
    log_info("job={} step={} has more declared copies than are compared", facts_.shape.job,
             number(at.step));
  }
  if (copies.differences.empty()) return;
  copies_differ_.at = at;
  ++copies_differ_.saves;
  copies_differ_.tensors = copies.differences.size();
  copies_differ_.first = copies.differences.front();
  log_warning("job={} ranks declare copies that are not the same: {}", facts_.shape.job,
              copies_differ_.in_words());
  life_.touch();  // The notice of it goes to a trainer.
}

void JobStorage::count_failure(const Error& error) {
  failures_.add(error);
  if (error.code() == Errc::exhausted && !std::exchange(is_making_room_, true))
    facts_.context.spawn(make_room());
}

// The disk is full. Steps that the rule does not keep go now: no newer one can be published before.
asio::awaitable<void> JobStorage::make_room() {
  const std::shared_ptr<void> held = life_.hold();
  storage::RetentionOrder order;
  order.run = facts_.shape.run;
  order.rule = retention_;
  if (facts_.durable) order.protected_steps.push_back(*facts_.durable);
  if (second_ && second_->copying()) order.protected_steps.push_back(*second_->copying());
  const auto catalog = co_await places_.front().load(std::nullopt);
  Result<std::vector<storage::Checkpoint>> deleted = std::vector<storage::Checkpoint>();
  if (catalog) {
    co_await coverage_.protect(places_.front(), catalog->checkpoints, order);
    deleted = co_await storage::make_room(site(), std::move(order));
  } else {
    deleted = fail(Error(catalog.error()));
  }
  is_making_room_ = false;
  if (!deleted) {
    log_warning("job={} {} is full, and old checkpoints are kept: {}", facts_.shape.job,
                facts_.directory, deleted.error().message());
    co_return;
  }
  for (const storage::Checkpoint& checkpoint : *deleted) {
    log_info("job={} step={} deleted {} to make room: {}", facts_.shape.job,
             number(checkpoint.at.step), checkpoint.name,
             storage::deletion_reason(checkpoint, retention_));
  }
  if (!deleted->empty() && peers_.is_coordinator()) read_catalog();
}

}  // namespace ckpt::node
