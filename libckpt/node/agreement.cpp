#include "node/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agree/overtaken.hpp"
#include "agree/timelines.hpp"
#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "base/within.hpp"

namespace ckpt::node {

using format::StartPhase;

namespace {

// How long nodes that are not heard count as coming, at the start of a job and after a stop of this
// process.
constexpr Duration arrival_grace = std::chrono::seconds(3);

agree::CoordinatorOptions coordinator_options(const JobFacts& facts) {
  const EngineContext& context = facts.context;
  agree::CoordinatorOptions options;
  options.node = facts.node;
  options.boot = facts.boot;
  options.flush_stalled_after = context.options.flush_stalled_after;
  return options;
}

// How long a start waits for storage to record it; then it goes, and is recorded later.
constexpr Duration record_patience = std::chrono::seconds(3);

format::RankReport report_of_rank(const Rank& rank, const Session& session,
                                  const OwnSlots& own_slots) {
  format::RankReport report;
  report.rank = rank.rank;
  report.session = session.asker;
  report.phase = session.phase;
  report.wanted = session.wanted;
  report.source = session.source;
  report.attempt = session.attempt;
  const bool speaks_of_current =
      session.phase == StartPhase::ready || session.phase == StartPhase::failed ||
      session.phase == StartPhase::refused || session.phase == StartPhase::running;
  report.start_id = speaks_of_current ? session.current_start : session.finished_start;
  report.timeline = session.timeline;
  report.last_seen = session.last_seen;
  report.restored_ok = session.restored_ok;
  report.is_closing = session.is_closing;
  if (session.phase == StartPhase::failed || session.phase == StartPhase::refused) {
    report.failure = session.failure;
    report.failure_code = session.failure_code;
  } else if (session.events != nullptr && rank.slots_failure) {
    report.failure = without_slots(*rank.slots_failure);
    report.failure_code = rank.slots_failure->code();
  }
  for (const OwnSlot& own : own_slots.slots) {
    const auto state = own.slot->state();
    if (own.filler == session.id || state == arena::Slot::State::filled) {
      report.filling.push_back(own.slot->id().at);
    }
  }
  return report;
}

// A Start that is not recorded, and that its trainers did not wait for, leaves no trace: with its
// number drawn at random it would outrank the timelines that others begin, where it ever came to
// be known. False: it goes.
bool withdraw_unrecorded(agree::Coordinator& coordinator, const agree::ClusterView& view,
                         const format::Start& start) {
  const agree::UnrecordedStart* unrecorded = coordinator.unrecorded();
  if (unrecorded == nullptr || unrecorded->start_id != start.start_id) return false;
  if (agree::are_all_in(view, start)) return false;
  coordinator.refuse(start.start_id,
                     Error(Errc::cancelled, "a rank was gone before the restore was recorded"));
  return true;
}

// False: it may go all the same. An abandoned step that storage does not know to be abandoned would
// pass for the newest once all daemons are gone.
bool refuse_unrecorded(agree::Coordinator& coordinator, const format::Start& start,
                       const Error& error) {
  const agree::UnrecordedStart* unrecorded = coordinator.unrecorded();
  if (unrecorded == nullptr || unrecorded->start_id != start.start_id || !unrecorded->abandons)
    return false;
  std::string what = fmt::format(
      "restore step {}: step {} on storage would have to be abandoned for it, which cannot be "
      "recorded there",
      number(start.base->step), number(unrecorded->abandons->step));
  coordinator.refuse(start.start_id, Error(error).context(std::move(what)));
  return true;
}

// False: it may go all the same. Nobody here knows the history that is there and cannot be read:
// the numbers of its timelines may be taken, and its steps would pass for abandoned ones. A job
// that knows its history goes on, and stores no step before it is recorded.
bool refuse_beside_unreadable(agree::Coordinator& coordinator, const JobStorage& storage,
                              const format::Start& start, const Error& error) {
  const agree::UnrecordedStart* unrecorded = coordinator.unrecorded();
  if (unrecorded == nullptr || unrecorded->start_id != start.start_id) return false;
  if (!storage.is_history_unreadable() || !unrecorded->before.history.empty()) return false;
  coordinator.refuse(start.start_id,
                     Error(Errc::io,
                           fmt::format("{}: make it readable and begin again, or in another "
                                       "directory",
                                       error.message()),
                           error.cause()));
  return true;
}

// False: it may go all the same. Somebody who knows nothing of us has trained since our memory was
// new: its steps would be abandoned for the older step that we chose without looking.
bool refuse_blind(agree::Coordinator& coordinator, const format::Start& start,
                  std::uint64_t timeline) {
  const agree::UnrecordedStart* unrecorded = coordinator.unrecorded();
  const bool is_refused = unrecorded != nullptr && unrecorded->start_id == start.start_id &&
                          unrecorded->is_blind && timeline != start.timeline;
  if (!is_refused) return false;
  coordinator.refuse(
      start.start_id,
      Error(Errc::unavailable,
            fmt::format("restore step {}: storage did not answer when it was chosen, and another "
                        "daemon has begun timeline {} of this job there: restore again",
                        number(start.base->step), start.timeline)));
  return true;
}

}  // namespace

Agreement::Agreement(JobFacts& facts, JobLife& life, const Ranks& ranks, SlotTable& slots,
                     Peers& peers, JobStorage& storage)
    : facts_(facts),
      life_(life),
      ranks_(ranks),
      slots_(slots),
      peers_(peers),
      storage_(storage),
      coordinator_(coordinator_options(facts)) {}

void Agreement::open() {
  facts_.history = agree::merge(facts_.history, storage_.stored_history());
  facts_.restore_counts = agree::merge(facts_.restore_counts, storage_.stored_counts());
  counts_announced_ = facts_.restore_counts;
  opened_at_ = facts_.clock().now();
}

void Agreement::shape_changed() {
  seen_.forget();
  coordinator_.set_node(facts_.node);
}

void Agreement::build_report(bool is_flush_wanted) {
  format::NodeReport report;
  report.job = facts_.shape.job;
  report.run = facts_.shape.run;
  report.node = facts_.node;
  report.boot = facts_.boot;
  report.sequence = report_.sequence;
  report.incarnation = facts_.shape.incarnation;
  report.members = facts_.members;
  report.world_size = facts_.shape.world_size;
  report.has_trainer = ranks_.have_trainer();
  report.has_ended = facts_.ended_at.has_value();
  for (const auto& [number_of_rank, rank] : ranks_) {
    if (rank.session) {
      report.ranks.push_back(report_of_rank(rank, *rank.session, slots_.own(number_of_rank)));
    }
  }
  slots_.for_each_sealed([&](arena::Slot& slot, bool is_own) {
    const format::ShardRecord& record = *slot.record();
    report.holdings.push_back(
        {record.id, slot.digest(), record.bytes, record.world_size, is_own, record.model});
  });
  if (facts_.durable) report.durable.push_back(*facts_.durable);
  const auto& damaged = storage_.damaged();
  report.damaged.assign(damaged.begin(), damaged.end());
  report.history = facts_.history;
  report.restore_counts = facts_.restore_counts;
  report.committed = facts_.committed;
  report.newest_seen = ranks_.newest_seen();
  report.start = facts_.decree.start;
  report.flush = storage_.flush_report();
  report.flush.is_wanted = is_flush_wanted;
  if (report == report_) return;
  ++report.sequence;
  report_ = std::move(report);
}

// Steps that it abandons are freed, and no later vote could say what became of them.
void Agreement::learn(const format::Timelines& stored) {
  agree::History merged = agree::merge(facts_.history, stored.history);
  std::string overtaken = agree::describe_overtaken(view(), facts_.history, merged);
  if (!overtaken.empty()) {
    log_warning("job={} {}", facts_.shape.job, overtaken);
    overtaken_ = std::move(overtaken);
    overtaken_since_ = agree::newest_timeline(merged);
  }
  facts_.history = std::move(merged);
  facts_.restore_counts = agree::fill_in(facts_.restore_counts, stored.restore_counts);
}

const agree::ClusterView& Agreement::view() const {
  agree::ClusterView& view = seen_.view;
  view.members = facts_.members;
  view.published = storage_.published();
  storage_.describe_rejected(view);
  view.last_look = facts_.last_look;
  view.unreadable = storage_.unreadable();
  view.history_lost = storage_.history_lost();
  view.is_history_unreadable = storage_.is_history_unreadable();
  view.overtaken = overtaken_;
  view.holes = storage_.coverage().text();
  view.expected.clear();
  view.unreported.clear();
  view.all_live = true;
  const Time now = facts_.clock().now();
  const Time alone_since = std::max(opened_at_, peers_.stood_still_at().value_or(opened_at_));
  const bool may_still_arrive = now - alone_since < arrival_grace && !facts_.secret.empty();
  std::vector<const format::NodeReport*> reports{&report_};
  for (const Node& node : facts_.shape.nodes) {
    if (node.name == facts_.node) {
      view.expected.push_back(node.name);
      continue;
    }
    const format::NodeReport* report =
        peers_.is_heard(node.name)
            ? peers_.heard_nodes().report_of(node.name, facts_.shape, facts_.members)
            : nullptr;
    if (report != nullptr) reports.push_back(report);
    const bool is_live = peers_.is_live(node.name);
    if (report == nullptr && is_live) view.unreported.push_back(node.name);
    if (is_live || may_still_arrive) view.expected.push_back(node.name);
    view.all_live = view.all_live && report != nullptr;
  }
  seen_.look_at(facts_.shape, reports);
  return view;
}

bool Agreement::decide() {
  if (!peers_.is_coordinator()) {
    if (was_coordinator_) {
      coordinator_.step_down();
      storage_.forget_published();
    }
    was_coordinator_ = false;
    has_followed_ = true;
    return follow();
  }
  // A listing that was under way has remembered steps since, and others may have removed them.
  if (std::exchange(has_followed_, false))
    for (StoredPlace& place : storage_.places()) place.forget_for_gone();
  was_coordinator_ = true;
  if (!peers_.is_heard_by_others()) return false;
  const agree::ClusterView& look = view();
  coordinator_.decide(look, facts_.clock().now());
  // A node takes itself for the coordinator until it has heard the others: that is too early.
  const bool is_first = look.expected.empty() || look.expected.front() == facts_.node;
  if (is_first || coordinator_.needs_published()) storage_.need_catalog();
  if (auto publishing = coordinator_.publishing()) {
    storage_.publish(*publishing, [this](std::uint64_t flush_id, const Status& status) {
      coordinator_.published(flush_id, status, facts_.clock().now());
      // Else the coordinator would order the same flush again before anybody looks.
      if (status && facts_.last_look == agree::LastLookState::gone)
        facts_.last_look = agree::LastLookState::there;
      life_.touch();
    });
  }
  const format::Decree& decree = coordinator_.decree();
  const bool is_new_start =
      decree.start && decree.start->outcome.is_go() && start_announced_ != decree.start->start_id;
  // Progress since a restore is recorded, too: else a job that ends and is started again elsewhere
  // looks as if it had never got on. A job without trainers here may have gone on elsewhere by now,
  // so nothing is recorded for it.
  const bool is_in_use = decree.ended || agree::has_trainers(look);
  const bool is_due =
      is_in_use && (decree.restore_counts != counts_announced_ || storage_.is_history_due());
  if (facts_.shape.has_storage && (is_new_start || is_due)) {
    if (!is_announcing_) {
      is_announcing_ = true;
      facts_.context.spawn(announce());
    }
    // The new timeline fences older steps on storage first; only then may anybody train on it.
    if (is_new_start || decree.ended) return false;
  }
  return adopt(decree);
}

// Errors: unavailable (storage did not answer in time), cancelled (the start was refused).
Task<void> Agreement::claim_timeline(format::Start start, Time deadline) {
  auto timeline = co_await within(facts_.context.executor, facts_.clock(), deadline,
                                  "claim a timeline", storage_.claim_timeline(start), life_.hold());
  const bool is_late = !timeline && facts_.clock().now() >= deadline;
  if (!timeline && refuse_beside_unreadable(coordinator_, storage_, start, timeline.error())) {
    co_return fail(Errc::cancelled, "the start was refused");
  } else if (!timeline) {
    log_warning("job={} timeline {} not claimed in the directory: {}", facts_.shape.job,
                start.timeline, timeline.error().message());
    timeline = start.timeline + agree::unclaimed_distance(facts_.context.random);
  } else if (refuse_blind(coordinator_, start, *timeline)) {
    co_return fail(Errc::cancelled, "the restore was refused");
  } else if (*timeline != start.timeline) {
    log_warning("job={} start={:x} goes in timeline {}: another daemon has begun timeline {}",
                facts_.shape.job, start.start_id, *timeline, start.timeline);
  }
  coordinator_.claimed(start.start_id, *timeline);
  if (is_late) co_return fail(Errc::unavailable, "storage did not answer in time");
  co_return Status{};
}

asio::awaitable<void> Agreement::announce() {
  const JobLife::WorkPass work = life_.begin_work();
  // Nobody trains before it is over: storage that hangs must not keep a restore from memory.
  const Time deadline = facts_.clock().after(record_patience);
  Status stored;
  if (coordinator_.unrecorded() != nullptr) {
    format::Start unclaimed = *coordinator_.decree().start;
    stored = co_await claim_timeline(std::move(unclaimed), deadline);
    if (!stored && stored.error().code() == Errc::cancelled) {  // There is no start to record.
      is_announcing_ = false;
      co_return life_.touch();
    }
  }
  const format::SharedStart start = coordinator_.decree().start;
  const agree::History history = coordinator_.decree().history;
  std::vector<format::RestoreCount> counts = coordinator_.decree().restore_counts;
  // After the deadline nobody waits for this record: it must not be written then.
  if (stored) {
    stored = co_await within(facts_.context.executor, facts_.clock(), deadline, "store timelines",
                             storage_.store_history(history, counts), life_.hold());
  }
  is_announcing_ = false;
  if (!stored) {
    storage_.store_history_later(stored.error());
    if (start && withdraw_unrecorded(coordinator_, view(), *start)) co_return life_.touch();
    if (start && refuse_beside_unreadable(coordinator_, storage_, *start, stored.error()))
      co_return life_.touch();
    if (start && refuse_unrecorded(coordinator_, *start, stored.error())) co_return life_.touch();
  }
  counts_announced_ = std::move(counts);
  if (start && start->outcome.is_go() && start_announced_ != start->start_id) {
    coordinator_.sent(start->start_id);
    start_announced_ = start->start_id;
    // Its base may be on its way to storage by now.
    const auto& flush = coordinator_.decree().flush;
    storage_.discard_older(start->timeline, flush ? flush->work_directory : std::string());
  }
  life_.touch();
}

// A node that we know to be outranked by a live one has no say.
bool Agreement::follow() {
  const format::Decree* decree =
      peers_.heard_nodes().decree_of(peers_.coordinator(), facts_.shape, facts_.members);
  if (decree == nullptr) return false;
  const bool is_older = decree->coordinator == facts_.decree.coordinator &&
                        decree->coordinator_boot == facts_.decree.coordinator_boot &&
                        decree->sequence <= facts_.decree.sequence;
  return !is_older && adopt(*decree);
}

bool Agreement::adopt(const format::Decree& decree) {
  const bool is_same = decree.coordinator == facts_.decree.coordinator &&
                       decree.coordinator_boot == facts_.decree.coordinator_boot &&
                       decree.sequence == facts_.decree.sequence;
  if (is_same) return false;
  // A coordinator that has just taken over, or was started anew, knows less than we do. It learns
  // from our report what we know, unless we forget it here.
  format::SharedStart start = agree::newer(facts_.decree.start, decree.start);
  // Our own later decree has a higher number, even if another node coordinated in between.
  const bool are_ours =
      decree.coordinator == facts_.node && facts_.decree.coordinator == facts_.node &&
      decree.coordinator_boot == facts_.boot && facts_.decree.coordinator_boot == facts_.boot;
  CKPT_ASSERT(!are_ours || decree.sequence > facts_.decree.sequence);
  facts_.decree = decree;
  facts_.decree.start = std::move(start);
  facts_.history = agree::merge(facts_.history, decree.history);
  // The trainers that have begun since were notified.
  if (agree::newest_timeline(facts_.history) > overtaken_since_) overtaken_.clear();
  facts_.restore_counts = agree::fill_in(decree.restore_counts, facts_.restore_counts);
  if (facts_.committed && facts_.is_fenced(*facts_.committed)) facts_.committed.reset();
  if (decree.committed && (!facts_.committed || *facts_.committed < *decree.committed)) {
    CKPT_POINT("commit.before");
    facts_.committed = decree.committed;
    CKPT_POINT("commit.after");
  }
  if (facts_.committed && facts_.is_fenced(*facts_.committed)) facts_.committed.reset();
  if (decree.durable) facts_.durable = decree.durable;
  if (facts_.durable && facts_.is_fenced(*facts_.durable)) facts_.durable.reset();
  CKPT_ASSERT(!facts_.committed || !facts_.is_fenced(*facts_.committed));
  return true;
}

}  // namespace ckpt::node
