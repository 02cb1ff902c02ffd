#include "node/second_place.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "agree/copy_rule.hpp"
#include "base/assert.hpp"
#include "base/log.hpp"
#include "storage/copy.hpp"
#include "storage/latest.hpp"
#include "storage/merge_timelines.hpp"
#include "storage/open_step.hpp"
#include "storage/removal.hpp"
#include "storage/run_directory.hpp"
#include "storage/step_attempt.hpp"

namespace ckpt::node {

namespace {

// Between tries: doubled after each failure.
constexpr Duration pause_min = std::chrono::seconds(5);
constexpr Duration pause_max = std::chrono::minutes(5);
// After so many failures of its last copy, a job ends without it.
constexpr std::uint32_t last_failures_max = 3;
// A Chunk takes seconds at most, also while it gives way.
constexpr Duration progress_expected_within = std::chrono::minutes(1);
// A copy waits so long for flushes in all; then it goes on beside them for so long.
constexpr Duration waited_max = std::chrono::seconds(10);
constexpr Duration turn_time = std::chrono::seconds(10);

}  // namespace

SecondPlace::SecondPlace(const JobFacts& facts, JobLife& life, GivingWay& giving_way,
                         StoredPlace& first, StoredPlace& second, Hooks hooks)
    : facts_(facts),
      life_(life),
      giving_way_(giving_way),
      first_(first),
      second_(second),
      hooks_(std::move(hooks)),
      changed_(facts.clock()) {}

void SecondPlace::note_read(const Status& read) {
  is_known_ = read.has_value();
  if (read) return;
  note(read);
}

void SecondPlace::published() {
  ++published_since_;
  failures_ = 0;
  wake();
}

void SecondPlace::begun() {
  is_last_ = false;
  recorded();
}

void SecondPlace::recorded() {
  must_record_ = true;
  wake();
}

void SecondPlace::finish() {
  if (is_last_) return;
  is_last_ = true;
  failures_ = 0;
  wake();
}

void SecondPlace::wake() {
  changed_.notify_all();
  if (is_running_ || is_stopped_ || !has_work()) return;
  is_running_ = true;
  progressed_at_ = facts_.clock().now();
  facts_.context.spawn(run());
}

void SecondPlace::stop() {
  is_stopped_ = true;
  changed_.close();
}

bool SecondPlace::is_finishing() const {
  return is_last_ && is_running_ && failures_ < last_failures_max &&
         facts_.clock().now() - progressed_at_ < progress_expected_within;
}

std::string SecondPlace::trouble(Time now) const {
  if (!hooks_.may_copy()) return {};
  if (!trouble_.empty()) return trouble_;
  if (!copying_ || now - progressed_at_ < progress_expected_within) return {};
  return fmt::format(
      "the copy of step {} to {} has not got on for {} s", number(copying_->step),
      second_.directory(),
      std::chrono::duration_cast<std::chrono::seconds>(now - progressed_at_).count());
}

std::optional<format::StepId> SecondPlace::newest() const {
  const auto found = std::ranges::max_element(second_.checkpoints(), {}, &storage::Checkpoint::at);
  return found == second_.checkpoints().end() ? std::nullopt : std::optional(found->at);
}

nlohmann::json SecondPlace::status() const {
  const auto there = newest();
  const auto step_of = [](const format::StepId& at) {
    return nlohmann::json{{"timeline", at.timeline}, {"step", number(at.step)}};
  };
  nlohmann::json status;
  status["directory"] = second_.directory();
  status["pace"] = storage::to_string(facts_.second->pace);
  status["newest"] = there ? step_of(*there) : nlohmann::json();
  status["copying"] = copying_ ? step_of(*copying_) : nlohmann::json();
  return status;
}

std::optional<format::StepId> SecondPlace::step_to_copy() const {
  std::vector<agree::DatedStep> first, second;
  for (const storage::Checkpoint& checkpoint : first_.checkpoints()) {
    if (!facts_.is_fenced(checkpoint.at))
      first.push_back({checkpoint.at, checkpoint.created_unix_seconds});
  }
  for (const storage::Checkpoint& checkpoint : second_.checkpoints()) {
    if (!facts_.is_fenced(checkpoint.at))
      second.push_back({checkpoint.at, checkpoint.created_unix_seconds});
  }
  agree::CopyView view;
  view.first = first;
  view.second = second;
  view.published_since = published_since_;
  view.is_last = is_last_;
  const storage::Pace& pace = facts_.second->pace;
  return agree::step_to_copy(view, {pace.steps, pace.time});
}

bool SecondPlace::has_work() const {
  return hooks_.may_copy() && (must_record_ || !is_known_ || step_to_copy());
}

asio::awaitable<void> SecondPlace::run() {
  const JobLife::WorkPass held = life_.begin_work();  // Its frame holds the buffers.
  while (!is_stopped_ && has_work()) {
    const Status done = co_await work();
    copying_.reset();
    if (is_stopped_ || !hooks_.may_copy()) break;
    note(done);
    life_.touch();
    if (done) continue;
    const Time again = facts_.clock().after(pause());
    auto woken = co_await changed_.wait_until(again);
    if (!woken) break;
  }
  is_running_ = false;
  life_.touch();
}

Duration SecondPlace::pause() const {
  CKPT_ASSERT(failures_ > 0);
  const std::uint32_t doublings = std::min<std::uint32_t>(failures_, 7) - 1;
  return std::min(pause_max, pause_min * (1 << doublings));
}

void SecondPlace::note(const Status& done) {
  if (done) {
    failures_ = 0;
    if (!trouble_.empty())
      log_info("job={} {} can be written to again", facts_.shape.job, second_.directory());
    trouble_.clear();
    return;
  }
  ++failures_;
  if (!trouble_.empty()) return;  // Said once.
  trouble_ =
      fmt::format("the second place {} does not get steps: {}", second_.directory(),
                  storage::with_room(done.error(), retention_, second_.directory()).message());
  log_warning("job={} {}", facts_.shape.job, trouble_);
}

Task<void> SecondPlace::work() {
  CKPT_ASSERT(is_running_);
  CKPT_ASSERT(!copying_);
  if (must_record_) CKPT_CO_CHECK(co_await record());
  if (!is_known_) {
    const GoneSteps::Listing listing = second_.begin_listing();
    CKPT_CO_TRY(storage::Catalog catalog, co_await second_.load(std::nullopt));
    second_.adopt(std::move(catalog), listing);
    is_known_ = true;
    hooks_.catalog_changed();
  }
  if (std::exchange(must_mend_, false)) CKPT_CO_CHECK(co_await mend_latest());
  const auto at = step_to_copy();
  if (!at) co_return Status();
  const std::uint64_t published_before = std::exchange(published_since_, 0);
  copying_ = *at;
  progressed_at_ = facts_.clock().now();
  Status copied = co_await copy(*at);
  if (!copied) published_since_ += published_before;
  co_return copied;
}

// Copies the records of the first place, and no more: a start that is not recorded there may fail.
Task<void> SecondPlace::record() {
  const format::RunId run = facts_.shape.run;
  storage::RunOrder order;
  order.job = facts_.shape.job;
  order.fresh_run = run;
  order.attempt = facts_.context.random.next();
  CKPT_CO_TRY(const format::RunMarker marker,
              co_await storage::open_run_directory(second_.site(), std::move(order)));
  if (marker.run != run) {
    co_return fail(Errc::invalid_argument, fmt::format("it is the directory of run {} of job {}",
                                                       to_hex(marker.run), marker.job));
  }
  must_record_ = false;
  auto timelines = co_await storage::load_timelines(first_.site(), run);
  if (timelines && !timelines->history.empty()) {
    const std::uint64_t attempt = facts_.context.random.next();
    auto added = co_await storage::add_timelines(second_.site(), *timelines,
                                                 storage::RestoreCounts::of_ours, attempt);
    if (!added) timelines = fail(std::move(added).error());
  }
  must_record_ = must_record_ || !timelines;
  if (!timelines) co_return fail(std::move(timelines).error());
  must_mend_ = true;
  co_return Status();
}

// A daemon that was killed, or somebody who removed steps by hand, may leave it dangling.
Task<void> SecondPlace::mend_latest() {
  const std::uint64_t attempt = facts_.context.random.next();
  auto mended =
      co_await storage::mend_latest(second_.site(), facts_.shape.run, second_.catalog(), attempt);
  if (!mended)
    log_warning("job={} `latest` in {} stays: {}", facts_.shape.job, second_.directory(),
                mended.error().message());
  co_return Status();
}

Task<void> SecondPlace::copy(format::StepId at) {
  const storage::Site from = first_.site();
  CKPT_CO_TRY(const auto step, co_await storage::OpenStep::in(from, first_.name_of(at)));
  storage::CopyOrder order;
  order.sources.push_back(step);
  order.manifest = step.manifest();
  CKPT_CO_TRY(format::Timelines timelines,
              co_await storage::load_timelines(from, facts_.shape.run));
  order.timelines = std::make_shared<const format::Timelines>(std::move(timelines));
  order.attempt = facts_.context.random.next();
  order.is_of_running_job = true;
  order.is_cancelled = [this] { return is_stopped_ || !hooks_.may_copy(); };
  order.done = [this](std::uint64_t, bool) { progressed_at_ = facts_.clock().now(); };
  order.hooks.compute = facts_.context.seams.compute;
  order.hooks.before_transfer = [this](std::uint64_t bytes) { return take_turn(bytes); };
  WorkMeter::Pass under_way = giving_way_.begin(BackgroundWork::flush);
  auto copied = co_await storage::copy_checkpoint(second_.site(), std::move(order));
  under_way.end(facts_.clock().now());
  if (!copied) {
    // Retention may have removed it meanwhile, and the next try must not want it again.
    const Status looked = co_await first_.look_up(at);
    if (looked && first_.name_of(at).empty()) co_return Status();
    if (copied.error().code() == Errc::exhausted) CKPT_CO_CHECK(co_await make_room());
    co_return fail(std::move(copied).error());
  }
  log_info("job={} step={} copied to {}", facts_.shape.job, number(at.step), second_.directory());
  Status cleaned = co_await clean_up(at);
  co_return cleaned;
}

// Flushes go first; and what training leaves of the disk and the network is shared with them. Where
// one flush follows another, the copy gets its turn beside them: else it would never end.
Task<void> SecondPlace::take_turn(std::uint64_t bytes) {
  Clock& clock = facts_.clock();
  if (clock.now() >= turn_until_) {
    const Time began = clock.now();
    CKPT_CO_CHECK(co_await hooks_.wait_for_flush(began + (waited_max - waited_)));
    waited_ += clock.now() - began;
    if (waited_ >= waited_max) {
      waited_ = {};
      turn_until_ = clock.after(turn_time);
    }
  }
  Status taken = co_await giving_way_.throttle(BackgroundWork::flush)->take(bytes);
  co_return taken;
}

// As in the first place: what the rule does not keep goes before the next try.
Task<void> SecondPlace::make_room() {
  storage::RetentionOrder order;
  order.run = facts_.shape.run;
  order.rule = retention_;
  CKPT_CO_TRY(const storage::Catalog catalog, co_await second_.load(std::nullopt));
  co_await hooks_.protect(catalog.checkpoints, order);
  const auto deleted = co_await storage::make_room(second_.site(), std::move(order));
  if (!deleted)
    log_warning("job={} {} is full, and old checkpoints are kept: {}", facts_.shape.job,
                second_.directory(), deleted.error().message());
  is_known_ = is_known_ && (!deleted || deleted->empty());
  co_return Status();
}

// The copy is durable, whatever becomes of the rest.
Task<void> SecondPlace::clean_up(format::StepId copied) {
  is_known_ = false;
  const GoneSteps::Listing listing = second_.begin_listing();
  CKPT_CO_TRY(storage::Catalog catalog, co_await second_.load(std::nullopt));
  is_known_ = true;
  co_await second_.record_retention(retention_);
  storage::RetentionOrder retention;
  retention.run = facts_.shape.run;
  retention.rule = retention_;
  retention.protected_steps.push_back(copied);
  co_await hooks_.protect(catalog.checkpoints, retention);
  auto deleted = co_await storage::apply_retention(second_.site(), std::move(retention), catalog);
  if (!deleted) {
    log_warning("job={} old checkpoints are kept in {}: {}", facts_.shape.job, second_.directory(),
                deleted.error().message());
  } else {
    for (const storage::Checkpoint& checkpoint : *deleted) {
      CKPT_ASSERT(checkpoint.at != copied);
      log_info("job={} step={} deleted {} in {}: {}", facts_.shape.job, number(checkpoint.at.step),
               checkpoint.name, second_.directory(),
               storage::deletion_reason(checkpoint, retention_));
    }
  }
  second_.adopt(std::move(catalog), listing);
  hooks_.catalog_changed();
  CKPT_CO_CHECK(co_await mend_latest());
  // Copies of older steps that broke off.
  storage::StaleAttempts stale;
  stale.with_files_aside = false;
  stale.is_kept = [copied](const std::string& name) {
    const auto at = storage::step_of_attempt(name);
    return !at || *at >= copied;
  };
  auto discarded = co_await storage::discard_stale(second_.site(), std::move(stale));
  if (!discarded)
    log_warning("job={} leftovers of earlier copies stay in {}: {}", facts_.shape.job,
                second_.directory(), discarded.error().message());
  co_return Status();
}

}  // namespace ckpt::node
