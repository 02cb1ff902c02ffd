#include "node/incoming_copies.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/kill_point.hpp"
#include "base/log.hpp"
#include "node/copy_base.hpp"

namespace ckpt::node {

Result<replicate::ReplicaTarget> IncomingCopies::reserve(const replicate::ShardOffer& offer) {
  const format::ShardRecord& record = *offer.record;
  const std::string what =
      fmt::format("copy of step {} rank {}", number(record.id.at.step), record.id.rank);
  if (record.job != facts_.shape.job || record.run != facts_.shape.run) {
    return fail(Errc::not_found, what + ": another run");
  }
  // With another number of ranks, only the step that was restored, until a newer one is committed.
  const bool is_wanted =
      record.world_size == facts_.shape.world_size || facts_.is_newest_committed(record.id.at);
  if (!is_wanted || record.id.rank >= record.world_size) {
    return fail(Errc::cancelled, what + ": another world size");
  }
  if (facts_.is_fenced(record.id.at)) {
    return fail(Errc::cancelled, what + ": fenced: its timeline was abandoned");
  }
  if (facts_.committed && record.id.at < *facts_.committed) {
    return fail(Errc::cancelled, what + ": a newer step is committed");
  }
  if (facts_.given_up == record.id.at) {
    return fail(Errc::cancelled, what + ": its memory was given to the Slots of ranks");
  }
  replicate::ReplicaTarget target;
  target.ticket = next_ticket_++;
  target.hold = giving_way_.begin_receiving();
  if (slots_.find(record.id, offer.digest)) {
    target.applied = replicate::ChunkSet(record.chunk_crcs.size());
    for (std::size_t i = 0; i < record.chunk_crcs.size(); ++i) target.applied.insert(i);
    receiving_[target.ticket] = {nullptr, offer.record, offer.digest, target.applied, target.hold};
    return target;
  }
  for (auto entry = receiving_.begin(); entry != receiving_.end(); ++entry) {
    Receiving& earlier = entry->second;
    if (!earlier.slot || earlier.record->id != record.id) continue;
    if (!earlier.hold.expired()) return fail(Errc::unavailable, what + ": is being received");
    if (earlier.digest != offer.digest) continue;
    target.bytes = earlier.slot->memory().bytes();
    target.applied = earlier.applied;
    Receiving resumed = std::move(earlier);
    resumed.hold = target.hold;
    receiving_.erase(entry);
    receiving_[target.ticket] = std::move(resumed);
    target.base = base_of(slots_, offer);
    return target;
  }
  auto slot = slots_.take_replica(record, [this, held = life_.hold()] { life_.touch(); });
  if (!slot && slot.error().code() == Errc::exhausted && make_room(record.id.rank))
    slot = slots_.take_replica(record, [this, held = life_.hold()] { life_.touch(); });
  if (!slot) return fail(std::move(slot).error());
  target.base = base_of(slots_, offer);  // Before anything else could ask for its Slot.
  (*slot)->begin_fill(record.id);
  target.bytes = (*slot)->memory().bytes();
  target.applied = replicate::ChunkSet(record.chunk_crcs.size());
  receiving_[target.ticket] = {*slot, offer.record, offer.digest, target.applied, target.hold};
  return target;
}

bool IncomingCopies::make_room(std::uint32_t rank) {
  for (auto entry = receiving_.begin(); entry != receiving_.end(); ++entry) {
    const Receiving& receiving = entry->second;
    if (!receiving.slot || receiving.record->id.rank != rank || !receiving.hold.expired()) continue;
    receiving.slot->abandon();
    receiving_.erase(entry);
    return true;
  }
  return false;
}

void IncomingCopies::base_damaged(const replicate::SealedShard& base, std::size_t chunk) {
  const format::ShardId& id = base.record->id;
  log_warning("job={} step={} rank={} chunk={} of our copy is damaged", facts_.shape.job,
              number(id.at.step), id.rank, chunk);
  slots_.quarantine(lease_of(base));
  life_.touch();
}

void IncomingCopies::chunk_applied(std::uint64_t ticket, std::size_t index) {
  const auto entry = receiving_.find(ticket);
  if (entry != receiving_.end()) entry->second.applied.insert(index);
}

Status IncomingCopies::sealed(std::uint64_t ticket) {
  const auto entry = receiving_.find(ticket);
  if (entry == receiving_.end()) return fail(Errc::cancelled, "seal a copy: its memory was freed");
  Receiving receiving = std::move(entry->second);
  receiving_.erase(entry);
  if (!receiving.slot) return {};  // We had it.
  CKPT_POINT("repl.ack.before");
  if (receiving.is_freed || facts_.is_fenced(receiving.record->id.at)) {
    receiving.slot->abandon();
    return fail(Errc::cancelled, "seal a copy: fenced, or its memory was freed");
  }
  // Healing or a restore has brought it meanwhile. Two of them would take the room of newer steps.
  if (slots_.find(receiving.record->id, receiving.digest)) {
    receiving.slot->abandon();
    return {};
  }
  receiving.slot->filled();
  receiving.slot->seal(std::move(receiving.record));
  CKPT_POINT("repl.ack.after");
  life_.touch();
  return {};
}

void IncomingCopies::abandoned(std::uint64_t ticket) {
  // The applied Chunks stay for the next offer of the same shard, until their Slot is needed.
  const auto entry = receiving_.find(ticket);
  if (entry == receiving_.end()) return;
  if (entry->second.slot && !entry->second.is_freed) return;
  if (entry->second.slot) entry->second.slot->abandon();
  receiving_.erase(entry);
}

void IncomingCopies::memory_freed() {
  for (auto entry = receiving_.begin(); entry != receiving_.end();) {
    Receiving& receiving = entry->second;
    receiving.is_freed = true;
    // While its connection still writes, the Slot stays; abandoned() or sealed() frees it.
    const bool is_over = receiving.slot && receiving.hold.expired();
    if (is_over) receiving.slot->abandon();
    entry = is_over ? receiving_.erase(entry) : std::next(entry);
  }
}

}  // namespace ckpt::node
