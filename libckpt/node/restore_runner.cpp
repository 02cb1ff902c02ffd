#include "node/restore_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "arena/arena_limits.hpp"
#include "base/assert.hpp"
#include "base/change_checked.hpp"
#include "base/counted.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "gather/own_shard.hpp"
#include "gather/wanted_shard.hpp"
#include "node/held_shards.hpp"
#include "node/unasked_tensors.hpp"
#include "os/path.hpp"

namespace ckpt::node {

using arena::Slot;
using format::StartPhase;

namespace {

// Often enough for a person who watches.
constexpr auto filling_interval = std::chrono::milliseconds(250);

// Nearest first. The Start names the peers that hold the shard: no other one is asked.
std::vector<CopySource> sources_of(const format::Start& start, std::uint32_t rank,
                                   const std::string& own_node) {
  if (start.source == SourceChoice::storage) return {Storage()};
  std::vector<CopySource> sources{OwnMemory()};
  PeerMemory peers{start.holders.at(rank)};
  std::erase(peers.nodes, own_node);
  if (!peers.nodes.empty()) sources.push_back(std::move(peers));
  if (start.source != SourceChoice::memory) sources.push_back(Storage());
  return sources;
}

RestoreSource kind_of(const CopySource& source) {
  if (std::holds_alternative<Storage>(source)) return RestoreSource::storage;
  return std::holds_alternative<PeerMemory>(source) ? RestoreSource::peer_memory
                                                    : RestoreSource::own_memory;
}

// Another rank may have read its own shard from storage, which no memory had: it is held here now.
CopySource farthest_of(const HeldShards& shards, const format::Start& start) {
  const bool is_stored_only =
      !start.is_of_others() &&
      std::ranges::any_of(start.holders,
                          [](const std::vector<std::string>& nodes) { return nodes.empty(); });
  if (is_stored_only || shards.was_storage_read()) return Storage();
  const std::set<std::string>& peers = shards.peers_read();
  if (peers.empty()) return OwnMemory();
  return PeerMemory{{peers.begin(), peers.end()}};
}

// The Slot with what came for it, or free again.
Result<std::shared_ptr<Slot>> sealed(std::shared_ptr<Slot> slot, Status came,
                                     std::shared_ptr<const format::ShardRecord> record) {
  if (slot->state() != Slot::State::filling) return fail(Errc::cancelled, "memory freed");
  if (!came) {
    slot->abandon();
    return fail(std::move(came).error());
  }
  slot->filled();
  slot->seal(std::move(record));
  return slot;
}

}  // namespace

void RestoreRunner::obey_start() {
  const format::SharedStart& start = facts_.decree.start;
  const bool is_under_way = start && start->base && start->outcome.is_pending();
  if (slots_.keep_damaged(is_under_way)) life_.touch();
  if (!start) return;
  for (auto& [number_of_rank, rank] : ranks_) obey_start(rank, *start);
}

// A session follows the Start it belongs to; one that it does not belong to is not for it.
void RestoreRunner::obey_start(Rank& rank, const format::Start& start) {
  Session* session = rank.session.get();
  if (session == nullptr || session->events == nullptr) return;
  const bool is_open = session->phase != StartPhase::idle && session->phase != StartPhase::running;
  const bool is_in =
      rank.rank < start.sessions.size() && start.sessions[rank.rank] == session->asker;
  if (!is_open || !is_in || session->finished_start == start.start_id) return;
  const bool is_ready = session->phase == StartPhase::ready &&
                        session->current_start == start.start_id &&
                        session->attempt == start.attempt;
  if (start.outcome.has_failed()) {
    brought_.erase(rank.rank);
    sessions_.miss_start(rank, start);
  } else if (start.outcome.is_go() && (is_ready || !start.base)) {
    CKPT_POINT("load.done");
    if (!start.base) brought_.erase(rank.rank);
    sessions_.begin_training(rank, start);
  } else if (start.outcome.is_go()) {
    // It asked again meanwhile: it missed this one.
    change_checked(*session, [&] { session->finished_start = start.start_id; });
  } else if (session->slots_sent && !session->is_copying && rank.fenced.empty() &&
             (session->current_start != start.start_id || session->attempt != start.attempt)) {
    // No source helps: there is no place for its bytes.
    const bool has_none = rank.slots_failure && slots_.own(rank.rank).slots.empty();
    if (has_none && !room_.will_have_room()) {
      session->answer(start, StartPhase::refused, fail(RestoreRoom::no_room(*rank.slots_failure)));
      return life_.touch();
    }
    CKPT_ASSERT(start.base.has_value());
    session->is_copying = true;
    facts_.context.spawn(bring_shard(rank.rank, session->id, start));
  } else if (!session->slots_sent || !rank.fenced.empty()) {
    announce(rank, *session, start);
  }
}

// The process before it may take long to die. The trainer learns that bytes will come, and gives
// its tensors their memory meanwhile.
void RestoreRunner::announce(const Rank& rank, Session& session, const format::Start& start) const {
  if (start.is_of_others() || start.source == SourceChoice::storage) return;
  if (std::exchange(session.announced_start, start.start_id) == start.start_id) return;
  const auto held = slots_.find({start.base.value(), rank.rank}, start.digests.at(rank.rank));
  if (held)
    session.events->tell(
        control::Filling{0, held->record()->bytes, name_of(CopySource(OwnMemory()))});
}

asio::awaitable<void> RestoreRunner::bring_shard(std::uint32_t rank_number, SessionId id,
                                                 format::Start start) {
  const JobLife::WorkPass work = life_.begin_work();
  Status offered;  // GCC 12 destroys what a conditional expression awaits twice.
  const auto is_put_together = co_await needs_pieces(rank_number, id, start);
  if (!is_put_together) {
    offered = fail(is_put_together.error());
  } else if (*is_put_together) {
    co_await hold_own_shard(rank_number, id, start);
    offered = co_await offer_from_pieces(rank_number, id, start);
  } else {
    offered = co_await offer_from_any_source(rank_number, id, start);
  }
  Session* session = ranks_.find(id);
  if (session == nullptr) co_return;  // The trainer died.
  CKPT_ASSERT(session->is_copying);
  session->is_copying = false;
  const bool is_still_asked =
      start.sessions.at(rank_number) == session->asker &&
      (session->phase == StartPhase::asks || session->phase == StartPhase::ready ||
       session->phase == StartPhase::failed || session->phase == StartPhase::refused);
  if (is_still_asked) {
    const bool is_refused = !offered && (room_.does_not_fit(rank_number, offered.error()) ||
                                         offered.error().code() == Errc::unsupported);
    const StartPhase phase = is_refused ? StartPhase::refused
                             : offered  ? StartPhase::ready
                                        : StartPhase::failed;
    session->answer(start, phase, offered);
    if (!offered) {
      log_warning("job={} rank={} step={} attempt={} not restored: {}", facts_.shape.job,
                  rank_number, number(start.base->step), start.attempt, session->failure);
    }
  }
  life_.touch();
}

Task<void> RestoreRunner::offer_from_any_source(std::uint32_t rank, SessionId id,
                                                format::Start start) {
  const format::ShardId shard{start.base.value(), rank};
  const Digest digest = start.digests.at(rank);
  std::string tried;
  const auto note = [&](const std::string& name, const Error& error) {
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", name, error.message());
  };
  ShardFill fill = begin_fill(shard, digest, id);
  // Step 1: own Slots; there may be several copies after a restore was repeated.
  for (const OwnSlot& own : std::vector<OwnSlot>(slots_.own(rank).slots)) {
    const bool is_it = own.slot->state() == Slot::State::sealed && !own.slot->is_retiring() &&
                       own.slot->id() == shard && own.slot->digest() == digest;
    if (!is_it || start.source == SourceChoice::storage) continue;
    CKPT_POINT("load.local");
    Origin origin{RestoreSource::own_memory, "own memory"};
    auto offered = co_await offer(rank, id, start, arena::Lease(own.slot), std::move(origin));
    if (offered || offered.error().code() != Errc::corruption) co_return offered;
    note("own memory", offered.error());
  }
  // Steps 2 to 4: every other source ends in one of the rank's Slots first.
  for (const CopySource& source : sources_of(start, rank, facts_.node)) {
    const std::string name = name_of(source);
    Result<std::shared_ptr<Slot>> slot = co_await fill.fill_from(source);
    if (std::holds_alternative<Storage>(source) && fill.storage_error())
      storage_.note_if_damaged(shard, *fill.storage_error(), start.from_storage);
    if (!slot) {
      if (room_.does_not_fit(rank, slot.error())) co_return fail(std::move(slot).error());
      if (slot.error().code() != Errc::not_found) note(name, slot.error());
      continue;
    }
    Origin origin{kind_of(source), name, fill.bytes_from_storage()};
    const std::string other = storage_.reads().other_place_of(shard);
    if (std::holds_alternative<Storage>(source) && !other.empty())
      origin.name += ", from the second place " + os::display(other);
    auto offered = co_await offer(rank, id, start, arena::Lease(*slot), std::move(origin));
    if (offered || offered.error().code() != Errc::corruption) co_return offered;
    note(name, offered.error());
  }
  // Step 5: what is good of each, together.
  auto together = co_await fill.fill_from_damaged(start.source);
  if (together) {
    Origin origin{RestoreSource::storage, "several damaged copies", fill.bytes_from_storage()};
    auto offered = co_await offer(rank, id, start, arena::Lease(*together), std::move(origin));
    co_return offered;
  }
  co_return fail(Errc::corruption,
                 fmt::format("restore step {} rank {}: no good copy ({})", number(shard.at.step),
                             rank, tried.empty() ? "none was found" : tried));
}

namespace {

std::vector<format::TensorSpec> specs_of(const format::Layout& layout) {
  std::vector<format::TensorSpec> specs;
  for (const format::TensorPlace& tensor : layout.tensors)
    specs.push_back(
        {tensor.name, tensor.dtype, tensor.shape, tensor.alias_of, /*archive=*/"", tensor.piece});
  return specs;
}

}  // namespace

// Ranks that restore together read the same records.
std::shared_ptr<SharedRecords> RestoreRunner::records_of(const format::Start& start) {
  const std::pair attempt(start.start_id, start.attempt);
  auto shared = records_.lock();
  if (shared && records_for_ == attempt) return shared;
  shared = std::make_shared<SharedRecords>(facts_.clock());
  records_ = shared;
  records_for_ = attempt;
  return shared;
}

// The same number of ranks may be another mesh, or the same ranks in another order, and captures of
// ranks that hold copies have only parts. Errors: those of reading the record of what was saved.
Task<bool> RestoreRunner::needs_pieces(std::uint32_t rank, SessionId id,
                                       const format::Start& start) {
  if (start.is_of_others()) co_return true;
  const auto wanted = [&]() -> const format::Layout* {  // Null: nobody says what it wants.
    const Session* session = ranks_.find(id);
    return session == nullptr ? nullptr : session->restored_layout();
  };
  if (wanted() == nullptr) co_return false;
  HeldShards shards({facts_, slots_, replication_, storage_, records_of(start)}, start);
  const auto saved = co_await shards.whole_record(rank);
  const format::Layout* const tensors = wanted();
  if (tensors == nullptr) co_return false;
  const bool has_copies = ranks_.find(id)->wanted_tensors != nullptr;
  if (!saved && has_copies) co_return true;
  // Another copy of what the rank saved may be good.
  if (!saved && !gather::has_pieces(*tensors)) co_return false;
  // No kind of error that would end the Start for all ranks: another step may do.
  if (!saved) co_return fail(Errc::unavailable, saved.error().message());
  if (has_copies) co_return format::fingerprint(*tensors) != (*saved)->model;
  // Such a rank registers nothing but what it wants for sure, and chooses from the rest later.
  if (ranks_.find(id)->joins_shards)
    co_return gather::has_other_parts(*tensors, (*saved)->layout) ||
        gather::lacks_whole_tensors(*tensors, (*saved)->layout);
  co_return gather::has_others(*tensors, (*saved)->layout);
}

// Puts the rank's own capture into one of its Slots again, as if it was offered as it is: lost
// copies are made from there. If that fails, the restores that need it fail, too.
asio::awaitable<void> RestoreRunner::hold_own_shard(std::uint32_t rank, SessionId id,
                                                    const format::Start& start) {
  if (start.is_of_others()) co_return;
  const format::ShardId shard{start.base.value(), rank};
  const Digest digest = start.digests.at(rank);
  const std::vector<OwnSlot>& slots = slots_.own(rank).slots;
  const bool is_there = std::ranges::any_of(slots, [&](const OwnSlot& own) {
    return own.slot->state() == Slot::State::sealed && !own.slot->is_retiring() &&
           own.slot->id() == shard && own.slot->digest() == digest;
  });
  if (is_there) co_return;
  ShardFill fill = begin_fill(shard, digest, id);
  for (const CopySource& source : sources_of(start, rank, facts_.node)) {
    const auto slot = co_await fill.fill_from(source);
    if (slot) co_return;
  }
}

// The shard that the rank would save lies in one of its Slots only while it is offered. It is no
// copy of anything that was captured, so that no other node may have it, and no report names it.
Task<void> RestoreRunner::offer_from_pieces(std::uint32_t rank, SessionId id, format::Start start) {
  const Session* session = ranks_.find(id);
  if (session == nullptr || session->restored_layout() == nullptr)
    co_return fail(Errc::cancelled, "offer pieces: the trainer died, or has no tensors");
  gather::ShardWish wish{specs_of(*session->restored_layout()), session->joins_shards};
  HeldShards shards({facts_, slots_, replication_, storage_, records_of(start)}, start);
  const gather::ReaderRank reader{rank, facts_.shape.world_size};
  CKPT_CO_TRY(gather::ShapedShard shaped,
              co_await gather::shape_shard(shards, reader, std::move(wish)));
  const std::uint64_t bytes = shaped.record.bytes;
  CKPT_CO_CHECK(co_await room_.wait(shaped.record.id, id, bytes));
  CKPT_CO_TRY(auto slot, room_.take(shaped.record.id, bytes));
  storage::TransferHooks hooks;
  hooks.compute = facts_.context.seams.compute;
  hooks.verified = send_filling(id, "memory of " + counted(shards.shard_count(), "rank"), bytes);
  auto filled = co_await gather::fill_shard(shards, reader, shaped,
                                            slot->memory().bytes().first(bytes), std::move(hooks));
  auto record = std::make_shared<const format::ShardRecord>(std::move(shaped.record));
  CKPT_CO_TRY(slot, sealed(std::move(slot), std::move(filled), std::move(record)));
  arena::Lease lease(slot);
  slot->retire();
  slot.reset();
  Origin origin = origin_of(shards, start, bytes);
  if (shards.was_storage_read())
    log_info("job={} rank={} step={} restored with {} from memory and {} from storage",
             facts_.shape.job, rank, number(start.base->step),
             arena::human_bytes(bytes - origin.bytes_from_storage),
             arena::human_bytes(origin.bytes_from_storage));
  if (rank == 0) co_await warn_of_unasked(facts_, ranks_, shards, start);
  auto offered = co_await offer(rank, id, start, std::move(lease), std::move(origin));
  co_return offered;
}

// `bytes`: of the shard, which has a header and gaps besides what was read.
RestoreRunner::Origin RestoreRunner::origin_of(const HeldShards& shards, const format::Start& start,
                                               std::uint64_t bytes) {
  const CopySource source = farthest_of(shards, start);
  Origin origin{kind_of(source), name_of(source), shards.bytes_from_storage()};
  const bool is_all_stored = shards.was_storage_read() && shards.bytes_from_memory() == 0;
  if (is_all_stored || origin.bytes_from_storage > bytes) origin.bytes_from_storage = bytes;
  return origin;
}

ShardFill RestoreRunner::begin_fill(format::ShardId id, Digest digest, SessionId for_whom) {
  ShardFill::Report report = [this, for_whom](std::string source, std::uint64_t bytes) {
    return send_filling(for_whom, std::move(source), bytes);
  };
  return ShardFill({facts_, slots_, replication_, storage_, room_}, id, digest, std::move(report));
}

// Offers a sealed Slot and waits for the trainer's answer; its death, or that it asks for something
// else by now, ends the wait.
Task<void> RestoreRunner::offer(std::uint32_t rank, SessionId id, format::Start start,
                                arena::Lease lease, Origin origin) {
  Session* session = nullptr;
  const auto is_waiting = [&] {
    session = ranks_.find(id);
    return session != nullptr && session->events != nullptr &&
           session->asker == start.sessions.at(rank);
  };
  if (!is_waiting() || !session->slots_sent) {
    co_return fail(Errc::cancelled, "offer a shard: the trainer does not wait for it any more");
  }
  const auto& slots = slots_.own(rank).slots;
  const auto place = std::find_if(slots.begin(), slots.end(), [&](const OwnSlot& own) {
    return own.slot.get() == &lease.slot();
  });
  if (place == slots.end()) co_return fail(Errc::cancelled, "offer a shard: new Slots were made");
  session->copy_result.reset();
  // An answer that is late is one to an earlier offer, which may have been another step.
  const std::uint64_t number_of_offer = facts_.context.random.next();
  const std::uint64_t bytes = lease.record().bytes;
  const Brought brought{start.base.value(), origin.source, bytes,
                        std::min(origin.bytes_from_storage, bytes)};
  control::Offer offered;
  offered.ask = session->ask;
  offered.offer = number_of_offer;
  offered.slot = static_cast<std::uint32_t>(place - slots.begin());
  offered.source = origin.source;
  offered.source_name = std::move(origin.name);
  offered.bytes_from_storage = origin.bytes_from_storage;
  offered.saved_by = static_cast<std::uint32_t>(start.digests.size());
  offered.record = lease.shared_record();
  session->events->tell(std::move(offered));
  const Time deadline = facts_.clock().after(facts_.context.options.restore_collect_deadline);
  while (true) {
    if (!is_waiting()) {
      co_return fail(Errc::cancelled, "offer a shard: the trainer died, or waits no more");
    }
    if (session->copy_result && session->copy_result->first == number_of_offer) break;
    auto woken = co_await life_.changed().wait_until(deadline);
    if (!woken) co_return fail(std::move(woken).error());
    if (!*woken) co_return fail(Errc::unavailable, "offer a shard: the trainer does not answer");
  }
  Status answer = session->copy_result->second;
  session->copy_result.reset();
  if (answer) note_brought(rank, *session, brought);
  if (!answer && answer.error().code() == Errc::corruption) {
    slots_.quarantine(lease);
  }
  co_return answer;
}

// A trainer that takes a step in several restores, and does not train between them, has it from its
// own memory from the second one on: the first one says where it came from.
void RestoreRunner::note_brought(std::uint32_t rank, const Session& session, const Brought& newer) {
  const std::optional<Brought> known = brought_to(rank, session);
  const bool is_same = known && known->at == newer.at && !session.last_seen;
  if (is_same && known->source > newer.source) return;
  brought_.insert_or_assign(rank, std::pair(session.id, newer));
}

std::optional<Brought> RestoreRunner::brought_to(std::uint32_t rank, const Session& session) const {
  const auto found = brought_.find(rank);
  if (found == brought_.end() || found->second.first != session.id) return std::nullopt;
  return found->second.second;
}

// Reports to the trainer, at once and then now and then, how far the Slot is that it waits for.
BytesVerified RestoreRunner::send_filling(SessionId id, std::string source_name,
                                          std::uint64_t bytes_total) {
  struct Progress {
    control::Filling filling;
    Time next_report;
  };
  Clock& clock = facts_.clock();
  auto progress = std::make_shared<Progress>();
  progress->filling = {0, bytes_total, std::move(source_name)};
  progress->next_report = clock.now();
  BytesVerified report = [this, &clock, id, progress = std::move(progress)](std::uint64_t bytes) {
    progress->filling.bytes += bytes;
    if (clock.now() < progress->next_report) return;
    progress->next_report = clock.after(filling_interval);
    Session* session = ranks_.find(id);
    if (session != nullptr && session->events != nullptr) session->events->tell(progress->filling);
  };
  report(0);
  return report;
}

}  // namespace ckpt::node
