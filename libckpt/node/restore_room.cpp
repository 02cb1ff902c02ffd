#include "node/restore_room.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "node/old_world.hpp"

namespace ckpt::node {

using arena::Slot;

// A free Slot of the rank; if there is none, that of the step that is least worth keeping. Never
// that of the newest committed step (I1): until this restore has succeeded, the next one may need
// it.
OwnSlot* RestoreRoom::best_for(const format::ShardId& id, std::uint64_t bytes) {
  OwnSlot* best = nullptr;
  const auto is_better = [&](const OwnSlot& candidate) {
    const Slot& slot = *candidate.slot;
    if (slot.state() == Slot::State::free) return true;
    if (slot.state() != Slot::State::sealed || slot.is_leased() || slot.id().at == id.at) {
      return false;
    }
    if (facts_.committed && slot.id().at == *facts_.committed) return false;
    // Steps above the voted one are not complete anywhere; below it, the oldest goes first.
    if (best == nullptr) return true;
    const bool is_above = slot.id().at > id.at;
    const bool best_is_above = best->slot->id().at > id.at;
    return is_above != best_is_above ? is_above : slot.id().at < best->slot->id().at;
  };
  for (OwnSlot& candidate : slots_.own(id.rank).slots) {
    if (candidate.filler || candidate.slot->capacity() < bytes || !is_better(candidate)) continue;
    best = &candidate;
    if (candidate.slot->state() == Slot::State::free) break;
  }
  return best;
}

Result<std::shared_ptr<Slot>> RestoreRoom::take(const format::ShardId& id, std::uint64_t bytes) {
  const OwnSlots& own = slots_.own(id.rank);
  if (own.slots.empty()) {
    return fail(Errc::unavailable,
                fmt::format("restore rank {}: its Slots are not made yet", id.rank));
  }
  const auto holds_it = [bytes](const OwnSlot& each) { return each.slot->capacity() >= bytes; };
  if (std::ranges::none_of(own.slots, holds_it)) {
    if (const auto& why = ranks_[id.rank].slots_failure) return fail(no_room(*why));
    return fail(Errc::invalid_argument,
                fmt::format("restore step {} rank {}: the checkpoint has {}, this model {}: "
                            "register what it has, or restore from the path of a stored one",
                            number(id.at.step), id.rank, arena::human_bytes(bytes),
                            arena::human_bytes(own.slot_bytes)));
  }
  OwnSlot* best = best_for(id, bytes);
  if (best == nullptr && slots_.let_go_damaged(id.rank)) best = best_for(id, bytes);
  if (best == nullptr) {
    return fail(Errc::unavailable, fmt::format("restore rank {}: every Slot is in use", id.rank));
  }
  if (best->slot->state() == Slot::State::sealed) best->slot->retire();
  CKPT_ASSERT(best->slot->state() == Slot::State::free);
  CKPT_ASSERT(best->slot->capacity() >= bytes);
  CKPT_ASSERT(!best->filler);
  best->is_granted = false;
  best->slot->begin_fill(id);
  return best->slot;
}

Error RestoreRoom::no_room(const Error& why) {
  const Errc code = why.code() == Errc::exhausted ? why.code() : Errc::invalid_argument;
  return Error(code, why.text(), why.cause());
}

bool RestoreRoom::does_not_fit(std::uint32_t rank, const Error& error) const {
  const bool lacks_memory = error.code() == Errc::exhausted && ranks_[rank].slots_failure;
  return lacks_memory || error.code() == Errc::invalid_argument;
}

bool RestoreRoom::is_of_others() const {
  const auto& start = facts_.decree.start;
  return start && start->base && start->is_of_others();
}

bool RestoreRoom::will_have_room() const {
  return is_of_others() && facts_.is_stored(facts_.decree.start->base.value());
}

// Free ones of the rank itself are too small for the shard. A restore of its own world leaves them,
// as training may go on with them.
bool RestoreRoom::let_go_for(std::uint32_t rank) {
  if (let_go_of_absent(ranks_, slots_)) return true;
  return is_of_others() && slots_.let_go_free_own(rank);
}

Task<void> RestoreRoom::wait_for_making(format::ShardId shard) {
  while (slots_.own(shard.rank).is_allocating && best_for(shard, 0) == nullptr) {
    CKPT_CO_TRY(const bool is_notified, co_await life_.changed().wait_until(no_deadline));
    CKPT_ASSERT(is_notified);
  }
  co_return Status();
}

Task<void> RestoreRoom::wait(format::ShardId shard, SessionId id, std::uint64_t bytes) {
  bool is_full = false;
  while (true) {
    Rank* rank = nullptr;
    Session* session = ranks_.find(id, &rank);
    if (session == nullptr || session->events == nullptr)
      co_return fail(Errc::cancelled, "make room for pieces: the trainer died");
    const bool are_mapped = session->slots_sent;
    const bool is_refused = rank->slots_failure && (is_full || !will_have_room());
    // Some Slots may have been made of a world that has no room beside the old one.
    if (is_refused && is_of_others()) co_return fail(no_room(*rank->slots_failure));
    if (are_mapped && best_for(shard, bytes) != nullptr) co_return Status();
    if (is_refused) co_return fail(no_room(*rank->slots_failure));
    if (are_mapped && !slots_.own(shard.rank).is_allocating) {
      const Status made = co_await slots_.make_for_restore(shard.rank, bytes);
      if (!made) (void)slots_.let_go_damaged(shard.rank);
      if (!made && best_for(shard, bytes) != nullptr) continue;
      session = ranks_.find(id, &rank);
      if (session == nullptr) continue;
      session->slots_sent = false;  // Also those that go have been sent.
      if (!made && !let_go_for(shard.rank)) {
        is_full = true;
        rank->slots_failure.emplace(made.error());
      }
      life_.touch();
    } else {
      CKPT_CO_TRY(const bool is_notified, co_await life_.changed().wait_until(no_deadline));
      CKPT_ASSERT(is_notified);
    }
  }
}

}  // namespace ckpt::node
