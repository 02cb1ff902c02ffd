#include "node/job_storage.hpp"

#include <fmt/format.h>

#include <set>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "base/within.hpp"
#include "os/path.hpp"
#include "storage/merge_timelines.hpp"
#include "storage/removal.hpp"
#include "storage/run_directory.hpp"
#include "storage/timeline_claim.hpp"

namespace ckpt::node {

namespace {

constexpr Duration history_again_after = std::chrono::seconds(5);
// A few small files, which take milliseconds.
constexpr Duration aside_long = std::chrono::seconds(10);

}  // namespace

// Since the job was opened here, others may have begun timelines that our memory knows nothing of.
asio::awaitable<void> JobStorage::learn_history() {
  auto timelines = co_await load_histories();
  if (timelines) learned_(*timelines);
}

// From both places: the first one may be new, and the second one behind.
Task<format::Timelines> JobStorage::load_histories() {
  auto timelines = co_await load_history();
  has_second_history_ = false;
  if (!second_ || !timelines) co_return timelines;
  const Time deadline = second_deadline();
  auto there =
      co_await within(facts_.context.executor, facts_.clock(), deadline,
                      "read the timelines of " + facts_.second->directory,
                      storage::load_timelines(places_[1].site(), stored_.run), life_.hold());
  is_second_late_ = !there && there.error().code() == Errc::unavailable;
  if (!there) {
    second_->note_read(fail(std::move(there).error()));
    co_return timelines;
  }
  auto merged = storage::merge(*timelines, *there);
  // Which of its steps were abandoned cannot be known then.
  places_[1].set_unusable(merged ? "" : merged.error().text());
  if (!merged) {
    second_->note_read(fail(std::move(merged).error()));
    co_return timelines;
  }
  has_second_history_ = !there->history.empty();
  co_return merged;
}

Task<format::Timelines> JobStorage::load_history() {
  auto timelines = co_await storage::load_timelines(site(), stored_.run);
  note_history(timelines);
  has_history_ = timelines && !timelines->history.empty();
  if (!timelines) {
    log_error("job={} the history of timelines {}: {}", facts_.shape.job,
              is_history_unreadable() ? "cannot be read" : "is lost", history_error_);
  }
  co_return timelines;
}

// Only damage is a loss: what somebody else may read, or we at another time, is there.
void JobStorage::note_history(const Result<format::Timelines>& read) {
  history_error_ = read ? "" : read.error().message();
  is_history_unreadable_ = !read && storage::is_unreadable(read.error().code());
  CKPT_ASSERT(!is_history_unreadable_ || !history_error_.empty());
}

std::string JobStorage::history_lost() const {
  if (!history_error_.empty()) return history_error_;
  // Each start records its timeline before anybody trains on it.
  if (has_history_ || !published_ || published_->empty()) return {};
  // A first place without checkpoints is new, and the second one's history is all there is.
  if (has_second_history_ && places_.front().checkpoints().empty()) return {};
  return fmt::format("there is none in {}", os::display(facts_.directory));
}

void JobStorage::store_history_later(const Error& error) {
  if (history_complaints_.may_speak()) {
    log_warning("job={} timeline not recorded in the directory, tried again: {}", facts_.shape.job,
                error.message());
  }
  history_due_ = facts_.clock().after(history_again_after);
}

std::string JobStorage::gone() const {
  return places_.empty() ? std::string() : places_.front().gone().text();
}

std::string JobStorage::trouble(Time now) const {
  std::string known = second_ ? second_->trouble(now) : std::string();
  const auto add = [&](const std::string& more) {
    if (!more.empty()) known += (known.empty() ? "" : "; ") + more;
  };
  std::set<std::string> named;  // Two places on one server have the same trouble.
  for (const StoredPlace& place : places_) {
    for (const std::string& trouble : place.troubles(now))
      if (named.insert(trouble).second) add(trouble);
  }
  if (!aside_since_ || now - *aside_since_ < aside_long) return known;
  return fmt::format("storage has not answered a write of timelines for {} s",
                     std::chrono::duration_cast<std::chrono::seconds>(now - *aside_since_).count());
}

bool JobStorage::is_history_due() const {
  return history_due_ && facts_.clock().now() >= *history_due_;
}

// A published step without the record of its timeline would be restored by nobody. Another daemon
// that recorded one at the moment when we did may have written over ours. Steps that its timeline
// has abandoned are not published, lest its own steps are taken for old ones.
Task<void> JobStorage::keep_history(format::StepId to_publish) {
  auto there = co_await load_history();
  if (there && agree::is_fenced(there->history, to_publish)) {
    failures_.refused();
    co_return fail(
        Errc::invalid_argument,
        fmt::format(
            "publish step {} of timeline {}: it was abandoned by timeline {}, which another "
            "daemon has begun in {}: no later step of this timeline is stored there either; {}; "
            "end one of the two daemons, or give them different directories; a trainer that "
            "starts again goes on from the other's steps",
            number(to_publish.step), to_publish.timeline, agree::newest_timeline(there->history),
            os::display(facts_.directory), failures_.way_out()));
  }
  // Later ones are recorded when they begin, or not at all.
  agree::History ours = facts_.history;
  std::erase_if(ours, [&](const format::TimelineStart& start) {
    return start.timeline > to_publish.timeline;
  });
  const bool is_whole =
      there && has_history_ && agree::merge(there->history, ours) == there->history;
  if (is_whole) co_return Status{};
  auto stored = co_await store_history(std::move(ours), facts_.decree.restore_counts);
  co_return stored;
}

Task<std::uint64_t> JobStorage::claim_timeline(format::Start start) {
  CKPT_CO_CHECK(co_await wait_aside_free());
  aside_since_ = facts_.clock().now();
  auto claimed = co_await claim_free_timeline(std::move(start));
  aside_since_.reset();
  aside_free_.notify_all();
  co_return claimed;
}

Task<std::uint64_t> JobStorage::claim_free_timeline(format::Start start) {
  constexpr int claims_max = 100;  // Somebody who takes them all does not mean well.
  if (is_history_unreadable_) {    // A claim in a directory of others is left to nobody.
    auto there = co_await storage::load_timelines(site(), stored_.run);
    note_history(there);
    if (is_history_unreadable_) co_return fail(std::move(there).error());
  }
  storage::Claim claim{start.timeline, start.start_id, 0};
  for (int claims = 0; claims < claims_max; ++claims) {
    claim.attempt = facts_.context.random.next();
    CKPT_CO_TRY(const storage::Claimed claimed, co_await storage::claim_timeline(site(), claim));
    if (claimed == storage::Claimed::before) break;
    if (claimed == storage::Claimed::now) {
      // The node that began and recorded it may have removed its claim by now.
      auto there = co_await storage::load_timelines(site(), stored_.run);
      if (!there && storage::is_unreadable(there.error().code())) {  // It may be taken.
        note_history(there);
        co_return fail(std::move(there).error());
      }
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
  // Nothing is known here: the file there may be damaged, but says more.
  if (history.empty()) {
    history_due_.reset();
    co_return Status{};
  }
  CKPT_CO_CHECK(co_await wait_aside_free());
  aside_since_ = facts_.clock().now();
  auto stored = co_await add_to_history(std::move(history), std::move(counts));
  aside_since_.reset();
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
  if (!there && storage::is_unreadable(there.error().code())) {
    note_history(there);
    store_history_later(there.error());
    co_return fail(std::move(there).error().context(
        "record a timeline, which does not replace a history that cannot be read"));
  }
  history_due_.reset();
  if (there) {
    timelines.history = agree::merge(timelines.history, there->history);
    timelines.restore_counts = agree::fill_in(timelines.restore_counts, there->restore_counts);
    if (timelines == *there) {
      // Also when it was another coordinator that mended it.
      has_history_ = !there->history.empty();
      note_history(there);
      co_return Status{};
    }
  }
  const std::uint64_t attempt = facts_.context.random.next();
  auto stored = co_await storage::store_timelines(site(), std::move(timelines), attempt);
  if (stored) {
    has_history_ = true;
    history_error_.clear();
    is_history_unreadable_ = false;
    if (second_) second_->recorded();
  } else {
    store_history_later(stored.error());
  }
  co_return stored;
}

void JobStorage::discard_older(std::uint64_t timeline, std::string kept) {
  facts_.context.spawn(run_discard(timeline, std::move(kept)));
}

asio::awaitable<void> JobStorage::run_discard(std::uint64_t timeline, std::string kept) {
  const std::shared_ptr<void> held = life_.hold();
  auto discarded = co_await discard_aside();
  if (discarded) {
    storage::StaleAttempts stale;
    stale.timelines_below = timeline;
    stale.is_kept = [kept = std::move(kept)](const std::string& name) { return name == kept; };
    stale.with_files_aside = false;
    discarded = co_await discard(std::move(stale));
  }
  if (discarded) discarded = co_await storage::discard_claims(site(), timeline);
  if (second_) second_->begun();
  if (discarded) co_return;
  log_warning("job={} what earlier attempts left stays: {}", facts_.shape.job,
              discarded.error().message());
}

// Files that we write aside must not be taken for leftovers: one task after the other. And a
// `latest` that is published lies aside for a moment.
Task<void> JobStorage::discard_aside() {
  CKPT_CO_CHECK(co_await wait_aside_free());
  if (!publishing_.empty()) co_return Status{};
  aside_since_ = facts_.clock().now();
  storage::StaleAttempts stale;
  stale.timelines_below = 0;
  auto discarded = co_await discard(std::move(stale));
  aside_since_.reset();
  aside_free_.notify_all();
  co_return discarded;
}

Task<void> JobStorage::wait_aside_free() {
  while (aside_since_) {
    const Time soon = facts_.clock().after(history_again_after);
    CKPT_CO_CHECK(co_await aside_free_.wait_until(soon));
  }
  co_return Status{};
}

Task<void> JobStorage::discard(storage::StaleAttempts stale) {
  // The base may be flushed again by now, which is an attempt of an older timeline.
  stale.is_kept = [this, others = std::move(stale.is_kept)](const std::string& name) {
    const auto& flush = facts_.decree.flush;
    return name == publishing_ || (flush && name == flush->work_directory) ||
           (others && others(name));
  };
  CKPT_CO_TRY(const auto removed, co_await storage::discard_stale(site(), std::move(stale)));
  for (const std::string& name : removed)
    log_info("job={} discarded {}: left by an earlier attempt", facts_.shape.job, name);
  co_return Status{};
}

}  // namespace ckpt::node
