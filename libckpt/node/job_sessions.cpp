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
#include "node/job_storage.hpp"
#include "node/peers.hpp"
#include "node/replication.hpp"

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
  if (request.incarnation < shape_.incarnation) {
    return fail(
        Errc::invalid_argument,
        fmt::format("attach rank {}: incarnation {} of the list of nodes is out of date, the "
                    "job has {}: start this trainer with the newest list",
                    request.rank, request.incarnation, shape_.incarnation));
  }
  if (request.dir != directory_ && is_closing()) {
    return fail(Errc::unavailable,
                fmt::format("attach rank {}: job {} was closed, and is not over yet on this node: "
                            "its newest step is on its way to '{}', or other nodes have not heard "
                            "of the end; ckpt drop {} frees what it holds at once",
                            request.rank, shape_.job, directory_, shape_.job));
  }
  if (request.dir != directory_) {
    return fail(Errc::invalid_argument,
                fmt::format("attach rank {}: job {} writes to '{}' on this node, not to '{}'; give "
                            "the new run another job's name, or free what the old one still holds "
                            "in memory: ckpt drop {}",
                            request.rank, shape_.job, directory_, request.dir, shape_.job));
  }
  return {};
}

void Job::adopt_shape(const AttachRequest& request) {
  shape_.world_size = request.world_size;
  shape_.replicas = request.replicas;
  shape_.incarnation = request.incarnation;
  shape_.has_storage = !request.dir.empty();
  shape_.nodes = request.nodes;
  shape_.save_mem_interval = request.save_mem_interval;
  shape_.save_storage_interval = request.save_storage_interval;
  seen_.forget();
  members_ = agree::members_digest(shape_);
  node_ = request.node;
  coordinator_.set_node(node_);
  secret_ = request.secret;
  own_slot_count_ =
      std::max(request.own_slots,
               request.dir.empty() ? arena::own_slots_min : arena::own_slots_with_storage);
  storage_->set_max_ckpt_num(request.max_ckpt_num);
  giving_way_.set_rates(request.flush_rate, request.replica_rate);
  if (shape_.nodes.size() > 1 && secret_.empty()) {
    log_warning("job={} no secret: no peer copies, and no checkpoints of a job of {} nodes",
                shape_.job, shape_.nodes.size());
  }
}

Result<Attached> Job::attach(const AttachRequest& request, SessionEvents& events) {
  CKPT_CHECK(check_attach(request));
  // Whoever is left of an older list may have its rank on another node by now.
  if (request.incarnation > shape_.incarnation) fence_all(request.process);
  adopt_shape(request);
  CKPT_POINT("reg.before");
  Rank& rank = ranks_[request.rank];
  rank.rank = request.rank;
  if (rank.session) {
    // The same process may come again over another connection: it cannot race with itself.
    const bool is_same_process = request.process != 0 && rank.session->process == request.process;
    if (is_same_process) detach(rank.session->id);
    if (rank.session) fence(rank, std::move(rank.session));
  }
  auto session = std::make_unique<Session>();
  session->id = SessionId{context_.random.next() | 1};
  session->asker = context_.random.next();
  session->events = &events;
  session->process = request.process;
  if (request.continuation) session->continue_as(*request.continuation);
  const Attached attached{session->id, shape_.run};
  session->check_invariants();
  CKPT_ASSERT(rank.session == nullptr);
  rank.session = std::move(session);
  rank.slots_failure.reset();
  ended_at_.reset();
  giving_way_.forget(rank.rank);
  peers_->members_changed();
  log_info("job={} rank={} session={:x} attached{}", shape_.job, rank.rank,
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
  abandon_fillings(rank.rank, older->id);
  revoke_grants(rank);
  if (older->events == nullptr) return;  // Its process is gone already.
  log_warning("job={} rank={} session={:x} fenced by a newer trainer", shape_.job, rank.rank,
              static_cast<std::uint64_t>(older->id));
  older->events->tell(
      control::Fenced{"a newer trainer with the same job name and rank attached; a different run "
                      "needs another job name"});
  rank.fenced.push_back(std::move(older));
}

Session* Job::find(SessionId id, Rank** rank) {
  for (auto& [number_of_rank, candidate] : ranks_) {
    if (rank != nullptr) *rank = &candidate;
    if (candidate.session && candidate.session->id == id) return candidate.session.get();
    for (auto& fenced : candidate.fenced) {
      if (fenced->id == id) return fenced.get();
    }
  }
  return nullptr;
}

Result<Caller> Job::active(SessionId id, std::string_view what) {
  Rank* rank = nullptr;
  Session* session = find(id, &rank);
  if (session == nullptr) {
    return fail(Errc::not_found, fmt::format("{}: no such session in job {}", what, shape_.job));
  }
  if (session->is_fenced) {
    return fail(Errc::unavailable, fmt::format("{}: fenced by a newer trainer of job {} rank {}",
                                               what, shape_.job, rank->rank));
  }
  session->check_invariants();
  return Caller{*session, *rank};
}

Status Job::call(SessionId id, control::Call call) {
  CKPT_TRY(const Caller by, active(id, control::name_of(call)));
  return std::visit([&](auto& it) { return carry_out(by, std::move(it)); }, call);
}

Status Job::carry_out(Caller by, control::SetLayout it) {
  CKPT_CHECK(format::validate(it.layout));
  const std::uint64_t bytes = it.layout.slot_bytes;
  const std::uint32_t version = it.layout.version;
  auto& layouts = by.session.layouts;
  layouts[version] = std::make_shared<const format::Layout>(std::move(it.layout));
  while (layouts.size() > Session::layouts_max) layouts.erase(layouts.begin());
  by.rank.wanted_slot_bytes = std::max(bytes, page_bytes);
  by.rank.slots_failure.reset();
  by.session.slots_told = false;
  touch();
  return {};
}

// Nodes that may not speak to one another cannot agree on a step: said at once, not by a deadline.
bool Job::refuse_without_peers(Session& session, const char* what) {
  if (shape_.nodes.size() == 1 || !secret_.empty() || session.events == nullptr) return false;
  Error error(Errc::unavailable,
              fmt::format("{} job {}: no secret: its {} nodes cannot agree on a step; give all of "
                          "them the same secret_file",
                          what, shape_.job, shape_.nodes.size()));
  session.events->tell(control::Begun{session.ask, 0, 0, std::nullopt, fail(std::move(error)), {}});
  return true;
}

Status Job::carry_out(Caller by, control::StartFresh it) {
  Session& session = by.session;
  session.ask = it.ask;
  if (refuse_without_peers(session, "start")) return {};
  if (session.phase == StartPhase::running || session.is_asking_after_training()) {
    if (session.phase != StartPhase::running) session.withdraw(context_.random.next());
    if (session.events != nullptr) {
      revoke_grants(by.rank);
      session.events->tell(control::Begun{
          it.ask, session.current_start, session.timeline, std::nullopt, Status(), {}});
    }
  } else if (session.phase != StartPhase::fresh) {
    session.phase = StartPhase::fresh;
    session.asker = context_.random.next();
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
  session.asker = context_.random.next();
  session.phase = StartPhase::asks;
  session.wanted = it.wanted;
  session.attempt = 0;
  session.current_start = 0;
  session.copy_result.reset();
  session.failure.clear();
  // What storage holds may have changed since it was read.
  storage_->forget_catalog();
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
  const std::optional<format::StepId> base = agree::base_of(history_, session.timeline);
  if (base && wanted.step <= base->step) wanted = *base;
  return committed_ && *committed_ >= wanted && (!durable_ || *durable_ < wanted);
}

Status Job::carry_out(Caller by, control::Close it) {
  Session& session = by.session;
  if (session.is_asking_after_training()) session.withdraw(context_.random.next());
  if (!session.close_deadline) session.close_deadline = context_.seams.clock.after(it.deadline);
  touch();
  return {};
}

Settled Job::settled_of(const Rank& rank) const {
  using State = arena::Slot::State;
  Settled settled;
  const auto own_slots = slots_.all_own().find(rank.rank);
  if (own_slots == slots_.all_own().end()) return settled;
  for (const OwnSlot& own : own_slots->second.slots) {
    const arena::Slot& slot = *own.slot;
    if (slot.state() == State::filling || slot.state() == State::filled) settled.is_filled = false;
    if (slot.state() != State::sealed || slot.is_retiring()) continue;
    if (!committed_ || slot.id().at > *committed_) settled.is_committed = false;
  }
  return settled;
}

void Job::settle_closing(Rank& rank) {
  Session* session = rank.session.get();
  if (session == nullptr || !session->close_deadline || session->is_closed) return;
  // A capture that is neither committed nor given up may still become the newest committed step.
  const Settled settled = settled_of(rank);
  const bool is_settled = settled.is_filled && settled.is_committed;
  session->is_closing = session->is_closing || is_settled;
  // Who never began has captured nothing that others would have to agree on.
  if (ended_at_ || session->phase != StartPhase::running) {
    session->is_closed = true;
    tell_levels(*session);  // What was flushed is known before the end is.
    if (session->events != nullptr) session->events->tell(control::Closed{});
  } else if (is_settled && !decree_.unstorable.empty() && !is_flushed(true)) {
    session->is_closed = true;
    if (session->events == nullptr) return;
    session->events->tell(
        control::Closed{fail(Errc::exhausted, fmt::format("close job {} rank {}: {}", shape_.job,
                                                          rank.rank, decree_.unstorable))});
  } else if (context_.seams.clock.now() >= *session->close_deadline) {
    session->is_closed = true;
    if (session->events == nullptr) return;
    session->events->tell(control::Closed{
        fail(Errc::unavailable,
             fmt::format("close job {} rank {}: not done in time: {}; the daemon goes on with it",
                         shape_.job, rank.rank,
                         !degraded().empty() ? degraded()
                         : is_settled        ? "other ranks have not closed, or storage is slow"
                                             : "a capture is not committed yet"))});
  }
}

void Job::detach(SessionId id) {
  Rank* rank = nullptr;
  Session* session = find(id, &rank);
  if (session == nullptr) return;
  CKPT_POINT("detach");
  log_info("job={} rank={} session={:x} is gone{}", shape_.job, rank->rank,
           static_cast<std::uint64_t>(id), session->is_closing ? " after closing" : "");
  abandon_fillings(rank->rank, id);
  session->events = nullptr;
  if (session->is_fenced) {
    std::erase_if(rank->fenced, [&](const auto& fenced) { return fenced->id == id; });
  } else {
    revoke_grants(*rank);
    // A session that closes is reported until all have: the last one ends the job.
    if (!session->close_deadline) rank->session.reset();
  }
  idle_.seen(context_.seams.clock.now());
  if (!has_trainer() && !is_closing() && slots_.bytes() > 0) {
    log_info("job={} has no trainer here any more: its memory, {}, is kept for {}, then {}",
             shape_.job, arena::human_bytes(slots_.bytes()), idle_.limit_text(),
             directory_.empty() ? "freed: there is no directory to store its steps in"
                                : "stored and freed");
  }
  touch();
}

bool Job::has_trainer() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    const Rank& rank = entry.second;
    return !rank.fenced.empty() || (rank.session && rank.session->events != nullptr);
  });
}

void Job::tell_levels(Session& session) {
  if (session.events == nullptr || session.phase != StartPhase::running) return;
  const std::optional<format::StepId> base = agree::base_of(history_, session.timeline);
  const auto tell = [&](const std::optional<format::StepId>& reached,
                        std::optional<format::StepId>& told, Level level) {
    // Other steps of older timelines say nothing of what this session has.
    if (!reached || reached == told) return;
    if (reached->timeline != session.timeline && reached != base) return;
    // What was durable when the timeline began may have been removed by hand before. The catalog,
    // which was read for the restore, knows; what is stored since may not be in it.
    const bool is_doubted = reached == base && level == Level::durable &&
                            reached == session.durable_before && !storage_->is_published(*base);
    if (is_doubted) return;
    told = reached;
    session.events->tell(control::LevelReached{reached->step, level});
  };
  tell(committed_, session.committed_told, Level::committed);
  tell(durable_, session.durable_told, Level::durable);
}

std::string Job::waiting() const {
  if (is_announcing_) return "the record of timelines is written in " + directory_;
  // That a node does not answer may be why a start waits; the coordinator cannot know it of others.
  return decree_.waiting.empty() ? std::string() : joined(decree_.waiting, peers_->trouble());
}

std::string Job::degraded() const {
  const Time now = context_.seams.clock.now();
  const std::string copies = joined(replication_->trouble(now), storage_->trouble(now));
  const std::string at_odds = heard_.at_odds(
      shape_, members_, node_, [this](const std::string& node) { return peers_->is_live(node); });
  return joined(joined(joined(decree_.degraded, peers_->trouble()), copies), at_odds);
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
  control::Notice notice{waiting_of(rank), degraded(), decree_.unstorable};
  if (notice == session->notice_told) return;
  session->notice_told = notice;
  session->events->tell(std::move(notice));
}

}  // namespace ckpt::node
