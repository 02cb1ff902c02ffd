#include "node/sessions.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "agree/timelines.hpp"
#include "base/assert.hpp"
#include "base/change_checked.hpp"
#include "base/counted.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "format/layout_validation.hpp"

namespace ckpt::node {

using format::StartPhase;

Sessions::Sessions(const JobFacts& facts, JobLife& life, Ranks& ranks, Captures& captures,
                   JobStorage& storage, GivingWay& giving_way)
    : facts_(facts),
      life_(life),
      ranks_(ranks),
      captures_(captures),
      storage_(storage),
      giving_way_(giving_way),
      idle_(facts.context.options.job_idle_limit) {
  idle_.seen(facts.clock().now());
}

Status Sessions::check(const AttachRequest& request) const {
  if (request.rank >= request.world_size) {
    return fail(Errc::invalid_argument, fmt::format("attach rank {} of a job of {}", request.rank,
                                                    counted(request.world_size, "rank")));
  }
  const auto is_ours = [&](const Node& node) { return node.name == request.node; };
  if (std::none_of(request.nodes.begin(), request.nodes.end(), is_ours)) {
    return fail(Errc::invalid_argument,
                fmt::format("attach rank {}: node '{}' is not in the job's list of nodes",
                            request.rank, request.node));
  }
  if (request.incarnation < facts_.shape.incarnation) {
    return fail(
        Errc::invalid_argument,
        fmt::format("attach rank {}: incarnation {} of the list of nodes is out of date, the "
                    "job has {}: start this trainer with the newest list",
                    request.rank, request.incarnation, facts_.shape.incarnation));
  }
  if (request.dir != facts_.dir && are_closing()) {
    return fail(Errc::unavailable,
                fmt::format("attach rank {}: job {} was closed, and is not over yet on this node: "
                            "its newest step is on its way to '{}', or other nodes have not heard "
                            "of the end; ckpt drop {} frees its memory at once",
                            request.rank, facts_.shape.job, facts_.directory, facts_.shape.job));
  }
  if (request.dir != facts_.dir && facts_.dir.empty()) {
    return fail(
        Errc::invalid_argument,
        fmt::format("attach rank {0}: job {1} has no directory on this node, and '{2}' is given: "
                    "ckpt cp memory:{1} '{2}' stores the newest step of its memory there; then, or "
                    "without that step, ckpt drop {1} ends the old run here; or give the new run "
                    "another job's name",
                    request.rank, facts_.shape.job, request.dir));
  }
  if (request.dir != facts_.dir) {
    return fail(
        Errc::invalid_argument,
        fmt::format("attach rank {}: job {} writes to '{}' on this node, not to '{}': if a link "
                    "makes these one directory, write it as before; else give the new run another "
                    "job's name, or end the old one here: ckpt stop stores its newest step first, "
                    "ckpt drop {} does not",
                    request.rank, facts_.shape.job, facts_.dir, request.dir, facts_.shape.job));
  }
  return {};
}

Attached Sessions::attach(const AttachRequest& request, SessionEvents& events) {
  Rank& rank = ranks_[request.rank];
  rank.taken_over.reset();
  if (auto older = remove_session(rank, request.process)) {
    const TakeOver taken{older->process, request.process, older->captured, facts_.clock().now()};
    const bool trains = older->events != nullptr && !older->close_deadline;
    if (trains) rank.taken_over = taken;
    fence(rank, std::move(older), text_for_older(taken));
  }
  if (request.killed != 0 && !rank.taken_over)
    rank.taken_over =
        TakeOver{request.killed, request.process, std::nullopt, facts_.clock().now(), true};
  auto session = std::make_unique<Session>();
  session->id = SessionId{facts_.context.random.next() | 1};
  session->asker = facts_.context.random.next();
  session->events = &events;
  session->process = request.process;
  if (request.continuation) session->continue_as(*request.continuation);
  const Attached attached{session->id, facts_.shape.run};
  session->check_invariants();
  CKPT_ASSERT(rank.session == nullptr);
  rank.session = std::move(session);
  rank.slots_failure.reset();
  giving_way_.forget(rank.rank);
  return attached;
}

void Sessions::forget_gone() {
  for (auto& [number_of_rank, rank] : ranks_)
    if (rank.session && rank.session->events == nullptr) rank.session.reset();
}

void Sessions::fence_all(const AttachRequest& newer) {
  const std::string why = fmt::format(
      "pid {} attached as rank {} with a newer list of the job's nodes, and this trainer belongs "
      "to the older one",
      newer.process, newer.rank);
  for (auto& [number_of_rank, rank] : ranks_) {
    if (number_of_rank == newer.rank) continue;
    if (auto older = remove_session(rank, newer.process)) fence(rank, std::move(older), why);
  }
}

// The same process may come again over another connection: it cannot race with itself.
std::unique_ptr<Session> Sessions::remove_session(Rank& rank, std::int64_t attaching_process) {
  const bool is_same =
      rank.session && attaching_process != 0 && rank.session->process == attaching_process;
  if (is_same) detach(rank.session->id);
  return std::move(rank.session);
}

void Sessions::fence(Rank& rank, std::unique_ptr<Session> older, std::string why) {
  CKPT_ASSERT(older != nullptr);
  CKPT_ASSERT(!older->is_fenced);
  change_checked(*older, [&] { older->is_fenced = true; });
  captures_.abandon_fillings(rank, older->id);
  captures_.revoke_grants(rank);
  if (older->events == nullptr) return;  // Its process is gone already.
  log_warning("job={} rank={} session={:x} pid={} is fenced: {}", facts_.shape.job, rank.rank,
              static_cast<std::uint64_t>(older->id), older->process, why);
  older->events->tell(control::Fenced{std::move(why)});
  rank.fenced.push_back(std::move(older));
}

// Nodes that may not speak to one another cannot agree on a step. They report it at once, not at a
// deadline.
bool Sessions::refuse_without_peers(Session& session, const char* what) {
  if (facts_.shape.nodes.size() == 1 || !facts_.secret.empty() || session.events == nullptr)
    return false;
  Error error(Errc::unavailable,
              fmt::format("{} job {}: no secret: its {} nodes cannot agree on a step; give all of "
                          "them the same secret_file",
                          what, facts_.shape.job, facts_.shape.nodes.size()));
  session.events->tell(control::Begun{session.ask, 0, 0, std::nullopt, fail(std::move(error)), {}});
  return true;
}

Status Sessions::carry_out(Caller by, control::StartFresh it) {
  Session& session = by.session;
  const StartPhase phase = it.is_implied ? StartPhase::saves : StartPhase::fresh;
  session.ask = it.ask;
  if (refuse_without_peers(session, "start")) return {};
  const bool has_trained =
      session.phase == StartPhase::running || session.is_asking_after_training();
  if (has_trained && it.is_anew) {
    session.ask_to(phase, facts_.context.random.next());
  } else if (has_trained) {
    if (session.phase != StartPhase::running) session.withdraw(facts_.context.random.next());
    if (session.events != nullptr) {
      captures_.end_restore(by.rank);
      session.events->tell(control::Begun{
          it.ask, session.current_start, session.timeline, std::nullopt, Status(), {}});
    }
  } else if (session.phase != phase) {
    session.phase = phase;
    session.asker = facts_.context.random.next();
  }
  life_.touch();
  return {};
}

namespace {

bool was_cut_short(const format::SharedStart& newest) {
  if (!newest.is_known()) return false;
  const format::StartOutcome& outcome = newest->outcome;
  return outcome.is_pending() || outcome == format::StartOutcome::failed(Errc::cancelled) ||
         outcome == format::StartOutcome::failed(Errc::unavailable);
}

}  // namespace

Status Sessions::carry_out(Caller by, control::AskRestore it) {
  Session& session = by.session;
  if (it.tensors) CKPT_CHECK(format::validate(*it.tensors));
  session.ask = it.ask;
  if (refuse_without_peers(session, "restore")) return {};
  CKPT_POINT("load.select");
  session.ask_to(StartPhase::asks, facts_.context.random.next());
  session.wanted = it.wanted;
  session.source = it.source;
  session.joins_shards = it.joins_shards;
  session.wanted_tensors.reset();
  if (it.tensors)
    session.wanted_tensors = std::make_shared<const format::Layout>(std::move(*it.tensors));
  // Storage may have changed since it was read, and files may have been repaired. But a restore
  // that was cut short hands on the damage that it found: else a slow one never gets beyond it.
  if (was_cut_short(facts_.decree.start)) {
    storage_.forget_catalog();
  } else {
    storage_.forget_verdicts();
  }
  life_.touch();
  return {};
}

Status Sessions::carry_out(Caller by, control::RestoreResult it) {
  by.session.copy_result.emplace(it.offer, std::move(it.result));
  life_.touch();
  return {};
}

Status Sessions::carry_out(Caller by, control::RestoredOk) {
  by.session.restored_ok = true;
  life_.touch();
  return {};
}

Status Sessions::carry_out(Caller by, control::StepTime it) {
  giving_way_.step_time(by.rank.rank, it);
  return {};
}

// Nothing is decided by it before the next restore, so nobody looks at it now.
Status Sessions::carry_out(Caller by, control::Passed it) {
  ranks_.saw(by.session, it.step);
  return {};
}

Status Sessions::carry_out(Caller by, control::Flush it) {
  auto& wanted = by.session.flush_wanted;
  wanted = std::max(wanted.value_or(it.step), it.step);
  life_.touch();
  return {};
}

bool Sessions::is_flush_awaited() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [this](const auto& entry) {
    return entry.second.session && is_flush_awaited(*entry.second.session);
  });
}

// Not before there is something to store that serves: an older step would be stored for nothing.
bool Sessions::is_flush_awaited(const Session& session) const {
  if (!session.flush_wanted || session.phase != StartPhase::running) return false;
  format::StepId wanted{session.timeline, *session.flush_wanted};
  const std::optional<format::StepId> base = agree::base_of(facts_.history, session.timeline);
  if (base && wanted.step <= base->step) wanted = *base;
  return facts_.committed && *facts_.committed >= wanted &&
         (!facts_.durable || *facts_.durable < wanted);
}

Status Sessions::carry_out(Caller by, control::Close it) {
  Session& session = by.session;
  if (session.is_asking_after_training()) session.withdraw(facts_.context.random.next());
  const bool has_trained = session.phase == StartPhase::running;
  if (!has_trained && facts_.directory.empty() && facts_.committed) {
    // The end of the job would free a step that is nowhere else, and that it did not ask for.
    log_warning("job={} rank={} closes without having trained: step {} stays in memory",
                facts_.shape.job, by.rank.rank, number(facts_.committed->step));
    if (session.events != nullptr) session.events->tell(control::Closed{Status()});
    return {};
  }
  if (!session.close_deadline) session.close_deadline = facts_.clock().after(it.deadline);
  life_.touch();
  return {};
}

void Sessions::begin_training(Rank& rank, const format::Start& start) {
  Session& session = *rank.session;
  session.begin(start, facts_.durable);
  // If it dies before its next step, nothing was lost.
  ranks_.saw(session, start.base ? start.base->step : Step{});
  captures_.end_restore(rank);
  session.events->tell(control::Begun{session.ask, start.start_id, start.timeline, start.base,
                                      Status(), reason_of(start), start.newest_seen});
  send_levels(session);
  // Storage may have the base, or a step before it, and only the coordinator reads the catalog.
  const std::optional<format::StepId>& stored = facts_.durable;
  if (stored && agree::leads_to(facts_.history, *stored, start.timeline) &&
      !storage_.is_published(*stored))
    storage_.look_for(*stored);
}

// Each node knows about its own view of the directory.
std::string Sessions::reason_of(const format::Start& start) const {
  const bool is_nothing = !start.base && start.reason == format::nothing_seen;
  if (!is_nothing || storage_.places().empty()) return start.reason;
  const std::string doubt = storage_.places().front().doubt();
  return doubt.empty() ? start.reason : start.reason + "; " + doubt;
}

void Sessions::miss_start(Rank& rank, const format::Start& start) {
  Session& session = *rank.session;
  session.miss(start);
  captures_.end_restore(rank);
  session.events->tell(control::Begun{session.ask, start.start_id, 0, std::nullopt,
                                      fail(start.outcome.error(), start.reason), start.reason});
}

// A trainer that closes gets one answer, as soon as nothing better can come:
//
//   the job has ended, or this rank never began  -> closed
//   the directory refuses the steps for good     -> unavailable, at once
//   the deadline                                 -> unavailable, with what is wrong or waited for
void Sessions::settle_closing(const Rank& rank, const std::function<std::string()>& degraded) {
  Session* session = rank.session.get();
  if (session == nullptr || !session->close_deadline || session->is_closed) return;
  // A capture that is neither committed nor given up may still become the newest committed step.
  const Settled settled = captures_.settled(rank);
  const bool is_settled = settled.is_filled && settled.is_committed;
  change_checked(*session, [&] { session->is_closing = session->is_closing || is_settled; });
  std::optional<Status> closed;
  // A rank that never began has captured nothing that others would have to agree on.
  if (facts_.ended_at || session->phase != StartPhase::running) {
    send_levels(*session);  // The trainer hears of the flush before the end.
    closed.emplace();
  } else if (is_settled && storage_.failures().are_refusals()) {
    closed = fail_close(
        rank, "the daemon has its newest step in memory alone: " + storage_.failures().newest());
  } else if (facts_.clock().now() >= *session->close_deadline) {
    std::string why = degraded();
    if (why.empty())
      why = is_settled ? "other ranks have not closed, or storage is slow"
                       : "a capture is not committed yet";
    closed = fail_close(rank, "not done in time: " + why + "; the daemon goes on with it");
  }
  if (!closed) return;
  change_checked(*session, [&] { session->is_closed = true; });
  if (session->events != nullptr) session->events->tell(control::Closed{std::move(*closed)});
}

Unexpected Sessions::fail_close(const Rank& rank, const std::string& why) const {
  return fail(Errc::unavailable,
              fmt::format("close job {} rank {}: {}", facts_.shape.job, rank.rank, why));
}

bool Sessions::are_closing() const {
  return facts_.ended_at || ranks_.have_all_closed();
}

void Sessions::detach(SessionId id) {
  Rank* rank = nullptr;
  Session* session = ranks_.find(id, &rank);
  if (session == nullptr) return;
  CKPT_POINT("detach");
  log_info("job={} rank={} session={:x} is gone{}", facts_.shape.job, rank->rank,
           static_cast<std::uint64_t>(id), session->is_closing ? " after closing" : "");
  captures_.abandon_fillings(*rank, id);
  change_checked(*session, [&] { session->events = nullptr; });
  if (session->is_fenced) {
    std::erase_if(rank->fenced, [&](const auto& fenced) { return fenced->id == id; });
  } else {
    captures_.revoke_grants(*rank);
    // A session that closes is reported until all have: the last one ends the job.
    if (!session->close_deadline) rank->session.reset();
  }
  idle_.seen(facts_.clock().now());
  const std::uint64_t held = captures_.slot_bytes();
  if (!ranks_.have_trainer() && !are_closing() && held > 0) {
    const char* then = "stored and freed";
    if (storage_.failures().are_refusals()) then = "freed: the directory takes none of its steps";
    if (facts_.directory.empty()) then = "freed: there is no directory to store its steps in";
    log_info("job={} has no trainer here any more: its memory, {}, is kept for {}, then {}",
             facts_.shape.job, arena::human_bytes(held), idle_.limit_text(), then);
  }
  life_.touch();
}

void Sessions::send_levels(Session& session) {
  if (session.events == nullptr || session.phase != StartPhase::running) return;
  const std::optional<format::StepId> base = agree::base_of(facts_.history, session.timeline);
  const auto send = [&](const std::optional<format::StepId>& reached,
                        std::optional<format::StepId>& sent, Level level) {
    // Other steps of older timelines say nothing of what this session has; but one that storage had
    // before the base is what would be left without memory.
    if (!reached || reached == sent) return;
    const bool is_of_ours = reached->timeline == session.timeline || reached == base;
    const bool is_before =
        level == Level::durable && agree::leads_to(facts_.history, *reached, session.timeline);
    if (!is_of_ours && !is_before) return;
    // A step that was durable when the timeline began may have been removed by hand. The catalog,
    // which was read for the restore, knows; steps stored since may not be in it.
    const bool is_older = reached->timeline != session.timeline;
    const bool is_doubted = is_older && level == Level::durable &&
                            reached == session.durable_before && !storage_.is_published(*reached);
    if (is_doubted) return;
    sent = reached;
    session.events->tell(control::LevelReached{reached->step, level});
  };
  send(facts_.committed, session.committed_sent, Level::committed);
  send(facts_.durable, session.durable_sent, Level::durable);
}

void Sessions::send_dropped(const std::vector<format::StepId>& steps) {
  for (const auto& [number_of_rank, rank] : ranks_) {
    if (!rank.session || rank.session->events == nullptr) continue;
    for (const format::StepId& at : steps) {
      if (at.timeline == rank.session->timeline)
        rank.session->events->tell(control::StepDropped{at.step});
    }
  }
}

namespace {

// For a trainer whose rank the job has no more, since another one attached with fewer ranks.
std::string text_for_left_out(std::uint32_t rank, const JobFacts& facts) {
  return fmt::format(
      "a newer trainer attached to job {}, and with {}: no later step of rank {} is captured or "
      "stored. If that trainer only reads, let it call libckpt.load_checkpoint, which takes "
      "nobody's place, and start this training again",
      facts.shape.job, counted(facts.shape.world_size, "rank"), rank);
}

}  // namespace

void Sessions::send_notice(const Rank& rank, control::Notice notice) const {
  Session* session = rank.session.get();
  if (session == nullptr || session->events == nullptr) return;
  const StartPhase phase = session->phase;
  if (!rank.fenced.empty()) {
    notice.waiting =
        fmt::format("an older trainer of rank {}, pid {}, still has its Slots and must end",
                    rank.rank, rank.fenced.front()->process);
  } else if (phase == StartPhase::idle || phase == StartPhase::running) {
    notice.waiting.clear();  // It has begun.
  }
  // Its trainer may not have meant it: as trouble it is logged at once.
  std::string own;
  if (rank.taken_over && is_news(*rank.taken_over, facts_.clock().now()))
    own = text_for_newer(*rank.taken_over, facts_);
  if (rank.rank >= facts_.shape.world_size) own = text_for_left_out(rank.rank, facts_);
  if (!own.empty()) notice.degraded = notice.degraded.empty() ? own : own + "; " + notice.degraded;
  if (notice == session->notice_sent) return;
  session->notice_sent = notice;
  session->events->tell(std::move(notice));
}

}  // namespace ckpt::node
