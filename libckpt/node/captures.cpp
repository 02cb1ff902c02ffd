#include "node/captures.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "format/layout_validation.hpp"

namespace ckpt::node {

using arena::Slot;
using format::StartPhase;

namespace {

// The driver ends a process's copies when the last holder of its device files closes them. Forked
// workers, such as those of a DataLoader, hold them too, and outlive a killed trainer. The queued
// copies are far less than a link of 10 GB/s moves in this time.
constexpr std::chrono::seconds gpu_rest{5};

}  // namespace

Status Captures::carry_out(Caller by, control::SetLayout it) {
  CKPT_CHECK(format::validate(it.layout));
  const std::uint64_t bytes = it.layout.slot_bytes;
  const std::uint32_t version = it.layout.version;
  auto& layouts = by.session.layouts;
  layouts[version] = std::make_shared<const format::Layout>(std::move(it.layout));
  while (layouts.size() > Session::layouts_max) layouts.erase(layouts.begin());
  by.rank.wanted_slot_bytes = std::max(bytes, page_bytes);
  by.rank.slots_failure.reset();
  by.session.slots_sent = false;
  life_.touch();
  return {};
}

void Captures::prepare_slots(Rank& rank) {
  Session* session = rank.session.get();
  if (session == nullptr || session->events == nullptr || rank.wanted_slot_bytes == 0) return;
  if (!rank.fenced.empty()) return;  // Their processes still have these Slots mapped.
  OwnSlots& own = slots_.own(rank.rank);
  if (session->slots_sent) return;
  const bool are_outgrown = own.slot_bytes < rank.wanted_slot_bytes;
  if (own.is_allocating) {
    // A restore needs one, and begins. Each may be gigabytes, which take long to make.
    if (!are_outgrown && !own.slots.empty()) send_slots(*session, own);
    return;
  }
  if (rank.slots_failure) {
    send_slots(*session, own);  // They serve restores.
    session->events->tell(control::SlotsFailed{fail(Error(*rank.slots_failure))});
    return;
  }
  if (are_outgrown || own.slots.size() < slot_count_) {
    facts_.context.spawn(make_slots(rank.rank, slot_count_, rank.wanted_slot_bytes));
    return;
  }
  send_slots(*session, own);
}

// Granted Slots stay granted: the trainer may be about to begin one.
void Captures::send_slots(Session& session, const OwnSlots& own) {
  CKPT_ASSERT(session.events != nullptr);
  std::vector<ReadySlot> slots;
  for (const OwnSlot& own_slot : own.slots)
    slots.push_back(
        {&own_slot.slot->memory(), session.generation_of(own_slot), own_slot.is_for_restore});
  session.slots_sent = true;
  session.events->slots_ready(std::move(slots));
}

asio::awaitable<void> Captures::make_slots(std::uint32_t rank_number, std::uint32_t count,
                                           std::uint64_t bytes) {
  const JobLife::WorkPass work = life_.begin_work();
  Rank& rank = ranks_[rank_number];
  std::function<void()> made_one = [this, &rank] { slots_changed(rank); };
  auto made = co_await slots_.make_own(rank_number, count, bytes, made_one);
  const bool is_full = !made && made.error().code() == Errc::exhausted;
  if (is_full && let_go_of_absent(ranks_, slots_))
    made = co_await slots_.make_own(rank_number, count, bytes, made_one);
  if (!made) {
    log_error("job={} rank={} {}", facts_.shape.job, rank_number, made.error().message());
    // The trainer may want less by now: that is tried.
    if (rank.wanted_slot_bytes >= bytes) slots_failed(rank, std::move(made).error());
  }
  slots_changed(rank);
}

// Those that were made serve a restore until it is over. A trainer that trains has none.
void Captures::slots_failed(Rank& rank, Error error) {
  rank.slots_failure.emplace(std::move(error));
  const Session* session = rank.session.get();
  if (session == nullptr || session->phase == StartPhase::running)
    (void)slots_.drop_for_restore(rank.rank);
}

// They are sent at once, not by the next update: a restore may be about to offer one.
void Captures::slots_changed(Rank& rank) {
  if (rank.session) rank.session->slots_sent = false;
  prepare_slots(rank);
  life_.touch();
}

void Captures::grant_slots(Rank& rank) {
  Session* session = rank.session.get();
  if (session == nullptr || session->events == nullptr) return;
  if (session->phase != StartPhase::running || !session->slots_sent || session->close_deadline) {
    return;
  }
  if (facts_.decree.next_capture != Step{} &&
      session->next_capture_sent != facts_.decree.next_capture) {
    session->next_capture_sent = facts_.decree.next_capture;
    session->events->tell(control::NextCapture{facts_.decree.next_capture});
  }
  const CapturePermission permission = facts_.context.captures;
  if (permission == CapturePermission::refused) return;
  if (permission == CapturePermission::finished && !is_flush_idle_) return;
  auto& slots = slots_.own(rank.rank).slots;
  for (std::uint32_t index = 0; index < slots.size(); ++index) {
    if (slots[index].is_granted || slots[index].slot->state() != Slot::State::free) continue;
    if (slots[index].is_for_restore) continue;
    CKPT_ASSERT(!slots[index].filler);
    slots[index].is_granted = true;
    session->events->tell(control::Granted{index});
  }
}

// Its trainer knows: it is gone, or it hears that its restore has ended, which may have taken them.
void Captures::revoke_grants(const Rank& rank) {
  for (OwnSlot& own : slots_.own(rank.rank).slots) own.is_granted = false;
}

void Captures::end_restore(Rank& rank) {
  revoke_grants(rank);
  if (!slots_.drop_for_restore(rank.rank)) return;
  if (rank.session) rank.session->slots_sent = false;  // Its trainer still has it mapped.
  life_.touch();
}

OwnSlot* Captures::slot_of(Caller by, std::uint32_t slot, std::uint64_t generation) {
  auto& slots = slots_.own(by.rank.rank).slots;
  const bool is_current =
      slot < slots.size() && by.session.generation_of(slots[slot]) == generation;
  return is_current ? &slots[slot] : nullptr;
}

Status Captures::carry_out(Caller by, control::Begin it) {
  OwnSlot* own = slot_of(by, it.slot, it.generation);
  const Status begun = own == nullptr ? Status() : begin(by, *own, it.step);
  // Without a begin there will be no capture: the other ranks must not wait for it.
  if (own == nullptr || !begun) CKPT_CHECK(drop(by, it.step));
  return begun;
}

Status Captures::drop(Caller by, Step step) {
  send_dropped(&by.session, {by.session.timeline, step});
  return carry_out(by, control::Skipped{step});
}

void Captures::send_dropped(Session* session, format::StepId at) {
  const bool is_of_now = session != nullptr && session->timeline == at.timeline;
  if (is_of_now && session->events != nullptr) session->events->tell(control::StepDropped{at.step});
}

Status Captures::begin(Caller by, OwnSlot& own, Step step) {
  Session& session = by.session;
  if (facts_.context.captures == CapturePermission::refused) {
    return fail(Errc::unavailable, fmt::format("begin step {}: the daemon ends", number(step)));
  }
  if (!own.is_granted) {
    return fail(Errc::invalid_argument,
                fmt::format("begin step {}: its Slot is not granted", number(step)));
  }
  if (session.last_seen && step <= *session.last_seen) {
    return fail(Errc::invalid_argument,
                fmt::format("begin step {}: steps grow within a timeline, and {} was seen",
                            number(step), number(*session.last_seen)));
  }
  CKPT_ASSERT(own.slot->state() == Slot::State::free);
  own.is_granted = false;
  CKPT_ASSERT(!own.filler);
  own.filler = session.id;
  own.early.reset();
  own.slot->begin_fill({{session.timeline, step}, by.rank.rank});
  session.last_seen = step;
  ranks_.saw(session, step);
  life_.touch();
  return {};
}

Status Captures::carry_out(Caller by, control::Arrived it) {
  OwnSlot* own = slot_of(by, it.slot, it.generation);
  if (own == nullptr) return {};
  if (own->filler != by.session.id || own->slot->state() != Slot::State::filling)
    return fail(Errc::invalid_argument, fmt::format("Slot {} is not being filled", it.slot));
  if (!own->early) {
    own->early =
        std::make_shared<EarlyChecksums>(facts_.context.executor, facts_.context.seams.compute,
                                         own->slot, facts_.context.chunk_bytes());
  }
  own->early->arrived(it.bytes);
  return {};
}

Status Captures::carry_out(Caller by, control::Abandon it) {
  OwnSlot* own = slot_of(by, it.slot, it.generation);
  if (own == nullptr) return {};
  if (own->filler != by.session.id || own->slot->state() != Slot::State::filling) {
    return fail(Errc::invalid_argument,
                fmt::format("abandon Slot {}: it is not being filled", it.slot));
  }
  own->slot->abandon();
  own->filler.reset();
  life_.touch();
  return {};
}

void Captures::abandon_fillings(const Rank& rank, SessionId filler) {
  for (OwnSlot& own : slots_.own(rank.rank).slots) {
    // The process of a fenced session may have copied for as long as it lived.
    if (own.rest && own.rest->of == filler) own.rest->until = facts_.clock().after(gpu_rest);
    if (own.filler != filler) continue;
    const bool is_by_gpu = own.early != nullptr;
    if (is_by_gpu) {
      own.rest = SlotRest{filler, facts_.clock().after(gpu_rest)};
    } else if (own.slot->state() == Slot::State::filling) {
      own.slot->abandon();
    }
    own.filler.reset();
  }
}

void Captures::end_rests(const Rank& rank) {
  // Their processes may still copy: the rest begins at their end.
  if (!rank.fenced.empty()) return;
  for (OwnSlot& own : slots_.own(rank.rank).slots) {
    if (!own.rest || facts_.clock().now() < own.rest->until) continue;
    own.rest.reset();
    own.early.reset();
    own.slot->abandon();
  }
}

Status Captures::carry_out(Caller by, control::Skipped it) {
  by.session.last_seen = std::max(by.session.last_seen.value_or(Step{}), it.step);
  ranks_.saw(by.session, it.step);
  life_.touch();
  return {};
}

// `id` has the timeline in which the capture began. A restore may have begun another one since.
Result<std::shared_ptr<const format::ShardRecord>> Captures::record_of(
    const Session& session, format::ShardId id, control::Filled& filled) const {
  const auto layout = session.layouts.find(filled.layout_version);
  if (layout == session.layouts.end()) {
    return fail(Errc::invalid_argument, fmt::format("seal step {}: unknown layout version {}",
                                                    number(filled.step), filled.layout_version));
  }
  format::ShardRecord record;
  record.job = facts_.shape.job;
  record.run = facts_.shape.run;
  record.id = id;
  record.world_size = facts_.shape.world_size;
  record.model = format::fingerprint(*layout->second);
  record.layout = *layout->second;
  record.blob_bytes = filled.blob_bytes;
  record.blobs = std::move(filled.blobs);
  record.blob_names = std::move(filled.blob_names);
  record.bytes = format::covered_bytes(record.layout, filled.blob_bytes);
  record.chunk_bytes = filled.chunk_bytes;
  record.chunk_crcs = std::move(filled.chunk_crcs);
  return std::make_shared<const format::ShardRecord>(std::move(record));
}

Status Captures::carry_out(Caller by, control::Filled it) {
  OwnSlot* own = slot_of(by, it.slot, it.generation);
  // Its begin was skipped, or its Slot went with the ones that a bigger layout replaced.
  if (own == nullptr) return drop(by, it.step);
  return fill(by, *own, std::move(it));
}

Status Captures::fill(Caller by, OwnSlot& own, control::Filled filled) {
  if (own.filler != by.session.id || own.slot->state() != Slot::State::filling ||
      own.slot->id().at.step != filled.step) {
    return fail(Errc::invalid_argument, fmt::format("seal step {}: Slot {} is not being filled",
                                                    number(filled.step), filled.slot));
  }
  CKPT_POINT("snap.accept");
  const std::shared_ptr<Slot> slot = own.slot;
  const format::StepId at = slot->id().at;
  own.filler.reset();
  const std::shared_ptr<EarlyChecksums> early = std::move(own.early);
  std::vector<Crc32> taken;
  if (early) taken = early->take();
  auto described = record_of(by.session, slot->id(), filled);
  if (!described) {
    slot->abandon();  // Nobody fills it any more, so nobody else would.
    send_dropped(&by.session, at);
    life_.touch();
    return fail(std::move(described).error());
  }
  std::shared_ptr<const format::ShardRecord> record = std::move(*described);
  slot->filled();
  slot->note_copies(std::move(filled.copies));
  if (record->chunk_crcs.empty() && record->bytes > 0) {
    facts_.context.spawn(checksum_and_seal(by.session.id, slot, *record, std::move(taken)));
    return {};
  }
  const Status valid = format::validate(*record);
  if (!valid || record->bytes > slot->capacity()) {
    slot->abandon();
    send_dropped(&by.session, at);
    life_.touch();
    return fail(Errc::invalid_argument,
                fmt::format("seal step {} rank {}: {}", number(filled.step), by.rank.rank,
                            valid ? "larger than its Slot" : valid.error().message()));
  }
  seal(&by.session, *slot, std::move(record));
  return {};
}

namespace {

// Takes the checksums of all Chunks of `bytes`; `taken` has those of the first ones.
Task<std::vector<Crc32>> checksums_of(Compute* compute, std::span<const std::byte> bytes,
                                      std::uint64_t chunk_bytes, std::vector<Crc32> taken) {
  taken.resize(std::min(taken.size(), bytes.size() / chunk_bytes));
  for (std::uint64_t at = taken.size() * chunk_bytes; at < bytes.size(); at += chunk_bytes) {
    const auto chunk = bytes.subspan(at, std::min(chunk_bytes, bytes.size() - at));
    CKPT_CO_TRY(const Crc32 crc, co_await crc32_on(compute, chunk));
    taken.push_back(crc);
  }
  co_return taken;
}

}  // namespace

// The trainer left the checksums to us. Those of the first Chunks were taken as they arrived.
asio::awaitable<void> Captures::checksum_and_seal(SessionId id, std::shared_ptr<Slot> slot,
                                                  format::ShardRecord record,
                                                  std::vector<Crc32> taken) {
  const JobLife::WorkPass work = life_.begin_work();
  record.chunk_bytes = facts_.context.chunk_bytes();
  Status valid = fail(Errc::invalid_argument, "larger than its Slot");
  if (record.bytes <= slot->capacity()) {
    const auto bytes = slot->memory().bytes().first(record.bytes);
    auto crcs = co_await checksums_of(facts_.context.seams.compute, bytes, record.chunk_bytes,
                                      std::move(taken));
    if (crcs) record.chunk_crcs = std::move(*crcs);
    valid = crcs ? format::validate(record) : fail(std::move(crcs).error());
  }
  if (slot->state() != Slot::State::filled) co_return;  // Its memory was freed meanwhile.
  if (!valid) {
    log_error("job={} step={} rank={} not sealed: {}", facts_.shape.job, number(record.id.at.step),
              record.id.rank, valid.error().message());
    slot->abandon();
    send_dropped(ranks_.find(id), record.id.at);
  } else {
    seal(ranks_.find(id), *slot, std::make_shared<const format::ShardRecord>(std::move(record)));
  }
  life_.touch();
}

void Captures::seal(Session* session, Slot& slot,
                    std::shared_ptr<const format::ShardRecord> record) {
  CKPT_POINT("seal.before");
  const auto [timeline, step] = record->id.at;
  slot.seal(std::move(record));
  CKPT_POINT("seal.after");
  // A restore may have begun another timeline while the checksums were taken.
  const bool is_of_now = session != nullptr && session->timeline == timeline;
  if (is_of_now) session->captured = {step, facts_.clock().now()};
  if (is_of_now && session->events != nullptr) {
    session->events->tell(control::LevelReached{step, Level::captured});
  }
  life_.touch();
}

Settled Captures::settled(const Rank& rank) const {
  using State = Slot::State;
  Settled it;
  const auto own_slots = slots_.all_own().find(rank.rank);
  if (own_slots == slots_.all_own().end()) return it;
  for (const OwnSlot& own : own_slots->second.slots) {
    const Slot& slot = *own.slot;
    if (own.rest) continue;
    if (slot.state() == State::filling || slot.state() == State::filled) it.is_filled = false;
    if (slot.state() != State::sealed || slot.is_retiring()) continue;
    if (!facts_.committed || slot.id().at > *facts_.committed) it.is_committed = false;
  }
  return it;
}

bool Captures::is_flushed(bool wait_for_commits) const {
  for (const auto& [number_of_rank, rank] : ranks_) {
    const Settled it = settled(rank);
    if (!it.is_filled || (wait_for_commits && !it.is_committed)) return false;
  }
  return is_stored();
}

bool Captures::is_stored() const {
  if (facts_.directory.empty() || !facts_.committed || facts_.is_fenced(*facts_.committed))
    return true;
  return facts_.durable && *facts_.durable >= *facts_.committed;
}

// I1: Slots that the newest committed step needs are never freed; all older and abandoned ones are.
void Captures::retire_useless() {
  const format::Decree& decree = facts_.decree;
  const auto is_dropped = [&](format::StepId at) {
    return std::find(decree.dropped.begin(), decree.dropped.end(), at) != decree.dropped.end();
  };
  // A Start that failed is over where trainers went on as before; else they may ask again.
  const bool is_training = ranks_.are_training();
  const bool is_over = decree.start && decree.start->outcome.has_failed() && is_training;
  const bool is_go = decree.start && decree.start->outcome.is_go();
  const bool is_beginning = decree.start && !is_go && !is_over;
  const bool is_fresh = is_go && !decree.start->base;
  old_world_.update();
  slots_.retire_if([&](const format::ShardId& id) {
    if (facts_.is_newest_committed(id.at)) return facts_.given_up == id.at;
    if (is_dropped(id.at)) return true;
    if (is_beginning) return false;  // Any of them may still be voted for.
    // A Start without a base fences nothing, yet its captures need the room.
    if (is_fresh && id.at.timeline < decree.start->timeline) return true;
    return facts_.is_useless(id.at);
  });
  if (is_go && is_training) old_world_.let_go();
}

std::string Captures::trouble() const {
  std::string text;
  for (const auto& [number_of_rank, rank] : ranks_) {
    const bool is_attached = rank.session != nullptr && rank.session->events != nullptr;
    if (!is_attached || !rank.slots_failure) continue;
    text += fmt::format("{}rank {} {}", text.empty() ? "" : "; ", number_of_rank,
                        without_slots(*rank.slots_failure));
  }
  return text;
}

}  // namespace ckpt::node
