// Trainers come, ask and go.
//
//   attach -> set_layout -> ask_restore or start_fresh -> (begin, filled)* -> close -> detach
//
// A second session of a rank fences the first; it gets the rank's Slots only after detach() of the
// first, which is the proof that its process can no longer write into them.
#include <fmt/format.h>

#include <algorithm>

#include "agree/timelines.hpp"
#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "node/job.hpp"

namespace ckpt::node {

using format::StartPhase;

namespace {

std::string joined(const std::string& first, const std::string& second) {
  return first + (first.empty() || second.empty() ? "" : "; ") + second;
}

}  // namespace

Status Job::check_attach(const AttachRequest& request) const {
  if (request.rank >= request.world_size) {
    return fail(Errc::invalid_argument, fmt::format("attach rank {} of a job of {} ranks",
                                                    request.rank, request.world_size));
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
  if (request.dir != facts_.directory && is_closing()) {
    return fail(Errc::unavailable,
                fmt::format("attach rank {}: job {} was closed, and is not over yet on this node: "
                            "its newest step is on its way to '{}', or other nodes have not heard "
                            "of the end; ckpt drop {} frees what it holds at once",
                            request.rank, facts_.shape.job, facts_.directory, facts_.shape.job));
  }
  if (request.dir != facts_.directory) {
    return fail(Errc::invalid_argument,
                fmt::format("attach rank {}: job {} writes to '{}' on this node, not to '{}'; give "
                            "the new run another job's name, or free what the old one still holds "
                            "in memory: ckpt drop {}",
                            request.rank, facts_.shape.job, facts_.directory, request.dir,
                            facts_.shape.job));
  }
  return {};
}

void Job::adopt_shape(const AttachRequest& request) {
  facts_.shape.world_size = request.world_size;
  facts_.shape.replicas = request.replicas;
  facts_.shape.incarnation = request.incarnation;
  facts_.shape.has_storage = !request.dir.empty();
  facts_.shape.nodes = request.nodes;
  facts_.shape.save_mem_interval = request.save_mem_interval;
  facts_.shape.save_storage_interval = request.save_storage_interval;
  seen_.forget();
  facts_.members = agree::members_digest(facts_.shape);
  facts_.node = request.node;
  coordinator_.set_node(facts_.node);
  facts_.secret = request.secret;
  captures_.set_slot_count(std::max(request.own_slots, request.dir.empty()
                                                           ? arena::own_slots_min
                                                           : arena::own_slots_with_storage));
  storage_.set_max_ckpt_num(request.max_ckpt_num);
  giving_way_.set_rates(request.flush_rate, request.replica_rate);
  if (facts_.shape.nodes.size() > 1 && facts_.secret.empty()) {
    log_warning("job={} no secret: no peer copies, and no checkpoints of a job of {} nodes",
                facts_.shape.job, facts_.shape.nodes.size());
  }
}

Result<Attached> Job::attach(const AttachRequest& request, SessionEvents& events) {
  CKPT_CHECK(check_attach(request));
  // Whoever is left of an older list may have its rank on another node by now.
  if (request.incarnation > facts_.shape.incarnation) fence_all(request.process);
  adopt_shape(request);
  CKPT_POINT("reg.before");
  Rank& rank = ranks_[request.rank];
  if (rank.session) {
    // The same process may come again over another connection: it cannot race with itself.
    const bool is_same_process = request.process != 0 && rank.session->process == request.process;
    if (is_same_process) detach(rank.session->id);
    if (rank.session) fence(rank, std::move(rank.session));
  }
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
  facts_.ended_at.reset();
  giving_way_.forget(rank.rank);
  peers_.members_changed();
  log_info("job={} rank={} session={:x} attached{}", facts_.shape.job, rank.rank,
           static_cast<std::uint64_t>(attached.session),
           request.continuation ? " to go on after a restart of the daemon" : "");
  CKPT_POINT("reg.after");
  touch();
  return attached;
}

void Job::fence_all(std::int64_t attaching_process) {
  for (auto& [number_of_rank, rank] : ranks_) {
    const bool is_same =
        rank.session && attaching_process != 0 && rank.session->process == attaching_process;
    if (is_same) detach(rank.session->id);
    if (rank.session) fence(rank, std::move(rank.session));
  }
}

void Job::fence(Rank& rank, std::unique_ptr<Session> older) {
  CKPT_ASSERT(older != nullptr);
  CKPT_ASSERT(!older->is_fenced);
  older->is_fenced = true;
  captures_.abandon_fillings(rank, older->id);
  captures_.revoke_grants(rank);
  if (older->events == nullptr) return;  // Its process is gone already.
  log_warning("job={} rank={} session={:x} fenced by a newer trainer", facts_.shape.job, rank.rank,
              static_cast<std::uint64_t>(older->id));
  older->events->tell(
      control::Fenced{"a newer trainer with the same job name and rank attached; a different run "
                      "needs another job name"});
  rank.fenced.push_back(std::move(older));
}

Status Job::call(SessionId id, control::Call call) {
  CKPT_TRY(const Caller by, ranks_.active(id, control::name_of(call), facts_.shape.job));
  const auto carry_out_here = [&](auto& it) -> Status {
    if constexpr (requires { captures_.carry_out(by, std::move(it)); })
      return captures_.carry_out(by, std::move(it));
    else
      return carry_out(by, std::move(it));
  };
  return std::visit(carry_out_here, call);
}

// Nodes that may not speak to one another cannot agree on a step: said at once, not by a deadline.
bool Job::refuse_without_peers(Session& session, const char* what) {
  if (facts_.shape.nodes.size() == 1 || !facts_.secret.empty() || session.events == nullptr)
    return false;
  Error error(Errc::unavailable,
              fmt::format("{} job {}: no secret: its {} nodes cannot agree on a step; give all of "
                          "them the same secret_file",
                          what, facts_.shape.job, facts_.shape.nodes.size()));
  session.events->tell(control::Begun{session.ask, 0, 0, std::nullopt, fail(std::move(error)), {}});
  return true;
}

Status Job::carry_out(Caller by, control::StartFresh it) {
  Session& session = by.session;
  session.ask = it.ask;
  if (refuse_without_peers(session, "start")) return {};
  if (session.phase == StartPhase::running || session.is_asking_after_training()) {
    if (session.phase != StartPhase::running) session.withdraw(facts_.context.random.next());
    if (session.events != nullptr) {
      captures_.revoke_grants(by.rank);
      session.events->tell(control::Begun{
          it.ask, session.current_start, session.timeline, std::nullopt, Status(), {}});
    }
  } else if (session.phase != StartPhase::fresh) {
    session.phase = StartPhase::fresh;
    session.asker = facts_.context.random.next();
  }
  touch();
  return {};
}

Status Job::carry_out(Caller by, control::AskRestore it) {
  Session& session = by.session;
  session.ask = it.ask;
  if (refuse_without_peers(session, "restore")) return {};
  CKPT_POINT("load.select");
  session.trained_before =
      session.phase == StartPhase::running || session.is_asking_after_training();
  session.asker = facts_.context.random.next();
  session.phase = StartPhase::asks;
  session.wanted = it.wanted;
  session.attempt = 0;
  session.current_start = 0;
  session.copy_result.reset();
  session.failure.clear();
  // What storage holds may have changed since it was read.
  storage_.forget_catalog();
  touch();
  return {};
}

Status Job::carry_out(Caller by, control::RestoreResult it) {
  by.session.copy_result.emplace(it.offer, std::move(it.result));
  touch();
  return {};
}

Status Job::carry_out(Caller by, control::RestoredOk) {
  by.session.restored_ok = true;
  touch();
  return {};
}

Status Job::carry_out(Caller by, control::StepTime it) {
  giving_way_.step_time(by.rank.rank, it);
  return {};
}

Status Job::carry_out(Caller by, control::Flush it) {
  auto& wanted = by.session.flush_wanted;
  wanted = std::max(wanted.value_or(it.step), it.step);
  touch();
  return {};
}

// Not before there is something to store that serves: an older step would be stored for nothing.
bool Job::is_flush_awaited(const Session& session) const {
  if (!session.flush_wanted || session.phase != StartPhase::running) return false;
  format::StepId wanted{session.timeline, *session.flush_wanted};
  const std::optional<format::StepId> base = agree::base_of(facts_.history, session.timeline);
  if (base && wanted.step <= base->step) wanted = *base;
  return facts_.committed && *facts_.committed >= wanted &&
         (!facts_.durable || *facts_.durable < wanted);
}

Status Job::carry_out(Caller by, control::Close it) {
  Session& session = by.session;
  if (session.is_asking_after_training()) session.withdraw(facts_.context.random.next());
  if (!session.close_deadline) session.close_deadline = facts_.clock().after(it.deadline);
  touch();
  return {};
}

void Job::settle_closing(Rank& rank) {
  Session* session = rank.session.get();
  if (session == nullptr || !session->close_deadline || session->is_closed) return;
  // A capture that is neither committed nor given up may still become the newest committed step.
  const Settled settled = captures_.settled(rank);
  const bool is_settled = settled.is_filled && settled.is_committed;
  session->is_closing = session->is_closing || is_settled;
  // Who never began has captured nothing that others would have to agree on.
  if (facts_.ended_at || session->phase != StartPhase::running) {
    session->is_closed = true;
    tell_levels(*session);  // What was flushed is known before the end is.
    if (session->events != nullptr) session->events->tell(control::Closed{});
  } else if (is_settled && !facts_.decree.unstorable.empty() && !captures_.is_flushed(true)) {
    session->is_closed = true;
    if (session->events == nullptr) return;
    session->events->tell(control::Closed{
        fail(Errc::exhausted, fmt::format("close job {} rank {}: {}", facts_.shape.job, rank.rank,
                                          facts_.decree.unstorable))});
  } else if (facts_.clock().now() >= *session->close_deadline) {
    session->is_closed = true;
    if (session->events == nullptr) return;
    session->events->tell(control::Closed{
        fail(Errc::unavailable,
             fmt::format("close job {} rank {}: not done in time: {}; the daemon goes on with it",
                         facts_.shape.job, rank.rank,
                         !degraded().empty() ? degraded()
                         : is_settled        ? "other ranks have not closed, or storage is slow"
                                             : "a capture is not committed yet"))});
  }
}

void Job::detach(SessionId id) {
  Rank* rank = nullptr;
  Session* session = ranks_.find(id, &rank);
  if (session == nullptr) return;
  CKPT_POINT("detach");
  log_info("job={} rank={} session={:x} is gone{}", facts_.shape.job, rank->rank,
           static_cast<std::uint64_t>(id), session->is_closing ? " after closing" : "");
  captures_.abandon_fillings(*rank, id);
  session->events = nullptr;
  if (session->is_fenced) {
    std::erase_if(rank->fenced, [&](const auto& fenced) { return fenced->id == id; });
  } else {
    captures_.revoke_grants(*rank);
    // A session that closes is reported until all have: the last one ends the job.
    if (!session->close_deadline) rank->session.reset();
  }
  idle_.seen(facts_.clock().now());
  if (!ranks_.have_trainer() && !is_closing() && slots_.bytes() > 0) {
    log_info("job={} has no trainer here any more: its memory, {}, is kept for {}, then {}",
             facts_.shape.job, arena::human_bytes(slots_.bytes()), idle_.limit_text(),
             facts_.directory.empty() ? "freed: there is no directory to store its steps in"
                                      : "stored and freed");
  }
  touch();
}

void Job::tell_levels(Session& session) {
  if (session.events == nullptr || session.phase != StartPhase::running) return;
  const std::optional<format::StepId> base = agree::base_of(facts_.history, session.timeline);
  const auto tell = [&](const std::optional<format::StepId>& reached,
                        std::optional<format::StepId>& told, Level level) {
    // Other steps of older timelines say nothing of what this session has.
    if (!reached || reached == told) return;
    if (reached->timeline != session.timeline && reached != base) return;
    // What was durable when the timeline began may have been removed by hand before. The catalog,
    // which was read for the restore, knows; what is stored since may not be in it.
    const bool is_doubted = reached == base && level == Level::durable &&
                            reached == session.durable_before && !storage_.is_published(*base);
    if (is_doubted) return;
    told = reached;
    session.events->tell(control::LevelReached{reached->step, level});
  };
  tell(facts_.committed, session.committed_told, Level::committed);
  tell(facts_.durable, session.durable_told, Level::durable);
}

std::string Job::waiting() const {
  if (is_announcing_) return "the record of timelines is written in " + facts_.directory;
  // That a node does not answer may be why a start waits; the coordinator cannot know it of others.
  return facts_.decree.waiting.empty() ? std::string()
                                       : joined(facts_.decree.waiting, peers_.trouble());
}

std::string Job::degraded() const {
  const Time now = facts_.clock().now();
  const std::string copies = joined(replication_.trouble(now), storage_.trouble(now));
  const std::string at_odds = peers_.heard_nodes().at_odds(
      facts_.shape, facts_.members, facts_.node,
      [this](const std::string& node) { return peers_.is_live(node); });
  return joined(joined(joined(facts_.decree.degraded, peers_.trouble()), copies), at_odds);
}

std::string Job::waiting_of(const Rank& rank) const {
  if (!rank.fenced.empty()) {
    return fmt::format("an older trainer of rank {}, pid {}, still has its Slots and must end",
                       rank.rank, rank.fenced.front()->process);
  }
  const StartPhase phase = rank.session->phase;
  const bool has_begun = phase == StartPhase::idle || phase == StartPhase::running;
  return has_begun ? std::string() : waiting();
}

void Job::tell_notice(const Rank& rank) {
  Session* session = rank.session.get();
  if (session == nullptr || session->events == nullptr) return;
  control::Notice notice{waiting_of(rank), degraded(), facts_.decree.unstorable};
  if (notice == session->notice_told) return;
  session->notice_told = notice;
  session->events->tell(std::move(notice));
}

}  // namespace ckpt::node
