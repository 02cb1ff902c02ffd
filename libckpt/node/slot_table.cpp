#include "node/slot_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/change_checked.hpp"
#include "base/log.hpp"
#include "base/spawn.hpp"
#include "base/units.hpp"

namespace ckpt::node {

using arena::Slot;

namespace {

std::uint64_t free_bytes(const OwnSlots& own_slots) {
  std::uint64_t bytes = 0;
  for (const OwnSlot& own_slot : own_slots.slots) {
    if (own_slot.slot->state() == Slot::State::free) bytes += own_slot.slot->capacity();
  }
  return bytes;
}

bool is_occupied(const Slot& slot) {
  return slot.state() == Slot::State::sealed || slot.state() == Slot::State::quarantined;
}

}  // namespace

void SlotTable::check_invariants() const {
  std::set<const Slot*> seen;
  std::uint64_t bytes = being_made_bytes_;
  const auto check = [&](const std::shared_ptr<Slot>& slot) {
    CKPT_ASSERT(slot != nullptr);
    CKPT_ASSERT(seen.insert(slot.get()).second);  // In one place only.
    bytes += slot->capacity();
  };
  for (const auto& [rank, own_slots] : own_) {
    for (const OwnSlot& own_slot : own_slots.slots) {
      check(own_slot.slot);
      const Slot& slot = *own_slot.slot;
      if (own_slot.is_granted) CKPT_ASSERT(slot.state() == Slot::State::free);
      if (own_slot.is_for_restore) CKPT_ASSERT(!own_slot.is_granted);
      if (own_slot.is_for_restore) CKPT_ASSERT(!own_slot.filler);
      if (own_slot.filler) CKPT_ASSERT(slot.state() == Slot::State::filling);
      if (own_slot.rest) CKPT_ASSERT(slot.state() == Slot::State::filling);
      if (own_slot.rest) CKPT_ASSERT(!own_slot.filler);
      if (slot.state() == Slot::State::sealed) CKPT_ASSERT(slot.id().rank == rank);
    }
  }
  for (const auto& [rank, slots] : replicas_) {
    for (const auto& slot : slots) {
      check(slot);
      if (slot->state() == Slot::State::sealed) CKPT_ASSERT(slot->id().rank == rank);
    }
  }
  for (const auto& slot : old_) check(slot);
  CKPT_ASSERT(bytes == bytes_);
}

SlotTable::~SlotTable() {
  *alive_ = false;
  context_.budget.release(bytes_);
}

Task<std::shared_ptr<Slot>> SlotTable::make_slot(std::uint64_t bytes, std::string what) {
  CKPT_CO_CHECK(reserve(bytes, what));
  auto slot = co_await make_reserved(bytes, std::move(what));
  co_return slot;
}

Status SlotTable::reserve(std::uint64_t bytes, const std::string& what) {
  CKPT_CHECK(context_.budget.reserve(bytes, what, used_by()));
  bytes_ += bytes;
  being_made_bytes_ += bytes;
  return {};
}

void SlotTable::release_reserved(std::uint64_t bytes) {
  CKPT_ASSERT(being_made_bytes_ >= bytes);
  being_made_bytes_ -= bytes;
  bytes_ -= bytes;
  context_.budget.release(bytes);
}

Task<std::shared_ptr<Slot>> SlotTable::make_reserved(std::uint64_t bytes, std::string what) {
  const std::shared_ptr<bool> alive = alive_;
  auto memory = co_await context_.seams.memory.allocate(bytes);
  if (!*alive) co_return fail(Errc::cancelled, what + ": the job ended");
  if (!memory) {
    release_reserved(bytes);
    co_return fail(std::move(memory).error().context(what));
  }
  CKPT_ASSERT(being_made_bytes_ >= bytes);
  being_made_bytes_ -= bytes;
  // Else the budget would get back another number than it gave.
  CKPT_ASSERT((*memory)->bytes().size() == bytes);
  co_return std::make_shared<Slot>(std::move(*memory));
}

Task<void> SlotTable::make_own(std::uint32_t rank, std::uint32_t count, std::uint64_t bytes,
                               std::function<void()> made_one) {
  OwnSlots& own_slots = own_[rank];
  CKPT_ASSERT(!own_slots.is_allocating);
  CKPT_ASSERT(count > 0);
  (void)drop_for_restore(rank);
  check_invariants();
  const std::string what = fmt::format("{} Slots of {} for job {} rank {}", count,
                                       arena::human_bytes(bytes), job_, rank);
  const bool are_outgrown = own_slots.slot_bytes < bytes;
  const std::uint64_t each = std::max(align_up(bytes, page_bytes), own_slots.slot_bytes);
  const std::uint64_t there = are_outgrown ? 0 : own_slots.slots.size();
  const std::uint64_t missing = count - std::min<std::uint64_t>(count, there);
  // Captures get all of them or none: with some, training would hardly ever find a free one. Those
  // that are there stay until it is known that larger ones may be had: the layout may go back.
  const auto check = [&] {
    const std::uint64_t given_back = are_outgrown ? free_bytes(own_slots) : 0;
    return context_.budget.check(missing * each, what, given_back, used_by(given_back));
  };
  Status checked = check();
  if (!checked && let_go_damaged()) checked = check();
  CKPT_CO_CHECK(std::move(checked));
  if (are_outgrown) {
    discard_all(own_slots);
    own_slots.slot_bytes = each;
  }
  // All at once: another rank, which asks meanwhile, must not get a part of them.
  const Status reserved = reserve(missing * each, what);
  CKPT_ASSERT(reserved.has_value());
  own_slots.is_allocating = true;
  const std::shared_ptr<bool> alive = alive_;
  for (std::uint64_t left = missing; left > 0; --left) {
    std::string of_one = what;
    auto slot = co_await make_reserved(each, std::move(of_one));
    if (!*alive) co_return fail(Errc::cancelled, "make Slots: the job ended");
    if (!slot) {
      release_reserved((left - 1) * each);
      own_slots.is_allocating = false;
      if (are_outgrown) own_slots.slot_bytes = 0;
      check_invariants();
      co_return fail(std::move(slot).error());
    }
    own_slots.slots.push_back(OwnSlot{std::move(*slot), ++own_made_});
    own_slots.slots.back().is_for_restore = are_outgrown;
    check_invariants();
    if (left > 1) made_one();
  }
  own_slots.is_allocating = false;
  for (OwnSlot& own_slot : own_slots.slots) own_slot.is_for_restore = false;
  check_invariants();
  co_return Status{};
}

// It is the last one, so that the others keep their numbers.
Task<void> SlotTable::make_for_restore(std::uint32_t rank, std::uint64_t bytes) {
  OwnSlots& own_slots = own_[rank];
  CKPT_ASSERT(!own_slots.is_allocating);
  (void)drop_for_restore(rank);
  own_slots.is_allocating = true;
  const std::shared_ptr<bool> alive = alive_;
  std::string what =
      fmt::format("a Slot of {} to restore job {} rank {}", arena::human_bytes(bytes), job_, rank);
  const std::uint64_t capacity = align_up(bytes, page_bytes);
  if (!context_.budget.check(capacity, what)) (void)let_go_damaged();
  auto slot = co_await make_slot(capacity, std::move(what));
  if (!*alive) co_return fail(Errc::cancelled, "make a Slot to restore: the job ended");
  own_slots.is_allocating = false;
  if (!slot) co_return fail(std::move(slot).error());
  own_slots.slots.push_back(OwnSlot{std::move(*slot), ++own_made_});
  own_slots.slots.back().is_for_restore = true;
  check_invariants();
  co_return Status{};
}

bool SlotTable::drop_for_restore(std::uint32_t rank) {
  OwnSlots& own_slots = own_[rank];
  if (own_slots.is_allocating) return false;
  std::vector<OwnSlot>& slots = own_slots.slots;
  bool has_dropped = false;
  while (!slots.empty() && slots.back().is_for_restore) {
    std::shared_ptr<Slot> slot = std::move(slots.back().slot);
    slots.pop_back();
    discard(std::move(slot));
    has_dropped = true;
  }
  return has_dropped;
}

void SlotTable::discard_all(OwnSlots& own_slots) {
  for (OwnSlot& own_slot : own_slots.slots) {
    // Memory that is given back need not rest: the driver keeps the pages that its copies write to.
    if (own_slot.rest) own_slot.slot->abandon();
    discard(std::move(own_slot.slot));
  }
  own_slots.slots.clear();
  own_slots.slot_bytes = 0;
}

void SlotTable::let_go_own(std::uint32_t rank) {
  const auto own = own_.find(rank);
  if (own == own_.end() || own->second.is_allocating) return;
  check_invariants();
  discard_all(own->second);
  own_.erase(own);
  check_invariants();
}

void SlotTable::let_go_replicas_from(std::uint32_t rank) {
  for (auto entry = replicas_.lower_bound(rank); entry != replicas_.end();)
    (void)let_go_replicas_of(entry++->first);
}

void SlotTable::let_go_healed() {
  std::erase_if(own_healed_, [this](std::uint32_t rank) { return let_go_replicas_of(rank); });
}

// True: none are left.
bool SlotTable::let_go_replicas_of(std::uint32_t rank) {
  const auto replicas = replicas_.find(rank);
  if (replicas_being_made_.contains(rank)) return false;
  if (replicas == replicas_.end()) return true;
  let_go_free(replicas->second);
  const bool are_gone = replicas->second.empty();
  if (are_gone) replicas_.erase(replicas);
  check_invariants();
  return are_gone;
}

void SlotTable::let_go_free(std::vector<std::shared_ptr<Slot>>& slots) {
  for (auto& slot : slots) {
    if (slot->state() == Slot::State::free) discard(std::move(slot));
  }
  std::erase(slots, nullptr);
}

// The rank trains on another node by now: its Slots here are for its copies, and stay.
Result<std::shared_ptr<Slot>> SlotTable::take_replica(const format::ShardRecord& record,
                                                      std::function<void()> made) {
  own_healed_.erase(record.id.rank);
  return change_checked(
      *this, [&] { return take(record, arena::replica_slots_per_rank, std::move(made)); });
}

Result<std::shared_ptr<Slot>> SlotTable::take_for_healing(const format::ShardRecord& record,
                                                          std::function<void()> made) {
  const bool is_own = own_.contains(record.id.rank);
  if (is_own) own_healed_.insert(record.id.rank);
  const std::uint32_t count = is_own ? 1 : arena::replica_slots_per_rank;
  return change_checked(*this, [&] { return take(record, count, std::move(made)); });
}

Result<std::shared_ptr<Slot>> SlotTable::take(const format::ShardRecord& record,
                                              std::uint32_t count, std::function<void()> made) {
  auto& slots = replicas_[record.id.rank];
  const std::uint64_t bytes = align_up(record.bytes, page_bytes);
  for (auto slot = slots.begin(); slot != slots.end();) {
    // Outgrown by a bigger layout.
    if ((*slot)->capacity() < bytes && (*slot)->state() == Slot::State::free) {
      discard(std::move(*slot));
      slot = slots.erase(slot);
    } else {
      ++slot;
    }
  }
  for (const auto& slot : slots) {
    if (slot->state() == Slot::State::free && slot->capacity() >= bytes) return slot;
  }
  // A reader that hangs, as a write to storage may, keeps its Slot; new copies get another one.
  for (auto& slot : slots) {
    if (slot->is_retiring()) discard(std::move(slot));
  }
  std::erase(slots, nullptr);
  if (count_replicas(record.id.rank, bytes) < count) {
    if (replicas_being_made_.insert(record.id.rank).second) {
      run_detached(context_.executor, make_replicas(record.id.rank, bytes, count, std::move(made)));
    }
    return fail(Errc::unavailable,
                fmt::format("Slots for copies of rank {} are being made", record.id.rank));
  }
  return fail(Errc::exhausted,
              fmt::format("all Slots for copies of rank {} are in use", record.id.rank));
}

std::uint32_t SlotTable::count_replicas(std::uint32_t rank, std::uint64_t bytes) const {
  const auto slots = replicas_.find(rank);
  if (slots == replicas_.end()) return 0;
  return static_cast<std::uint32_t>(
      std::count_if(slots->second.begin(), slots->second.end(),
                    [&](const auto& slot) { return slot->capacity() >= bytes; }));
}

asio::awaitable<void> SlotTable::make_replicas(std::uint32_t rank, std::uint64_t bytes,
                                               std::uint32_t count, std::function<void()> made) {
  const std::shared_ptr<bool> alive = alive_;
  while (count_replicas(rank, bytes) < count) {
    std::string what = fmt::format("a Slot of {} for a copy of job {} rank {}",
                                   arena::human_bytes(bytes), job_, rank);
    auto slot = co_await make_slot(bytes, std::move(what));
    if (!*alive) co_return;
    if (!slot) {
      log_warning("job={} rank={} no copies can be kept here: {}", job_, rank,
                  slot.error().message());
      break;
    }
    replicas_[rank].push_back(std::move(*slot));
    check_invariants();
  }
  const bool was_being_made = replicas_being_made_.erase(rank) == 1;
  CKPT_ASSERT(was_being_made);
  made();
}

bool SlotTable::is_readable(const Slot& slot) {
  return slot.state() == Slot::State::sealed && !slot.is_retiring();
}

void SlotTable::for_each_sealed(const std::function<void(Slot& slot, bool is_own)>& visit) const {
  for (const auto& [rank, own_slots] : own_) {
    for (const OwnSlot& own_slot : own_slots.slots) {
      if (is_readable(*own_slot.slot)) visit(*own_slot.slot, true);
    }
  }
  for (const auto& slot : old_) {
    if (is_readable(*slot)) visit(*slot, true);
  }
  for (const auto& [rank, slots] : replicas_) {
    for (const auto& slot : slots) {
      if (is_readable(*slot)) visit(*slot, false);
    }
  }
}

std::shared_ptr<Slot> SlotTable::find(const format::ShardId& id, const Digest& digest) const {
  std::shared_ptr<Slot> found;
  for_each_sealed([&](Slot& slot, bool) {
    if (!found && slot.id() == id && slot.digest() == digest) found = slot.shared_from_this();
  });
  return found;
}

bool SlotTable::has_older_unsealed(const format::ShardId& id) const {
  const auto own = own_.find(id.rank);
  if (own == own_.end()) return false;
  return std::ranges::any_of(own->second.slots, [&](const OwnSlot& other) {
    const bool is_captured = other.slot->state() == Slot::State::filled || other.filler;
    const format::StepId at = other.slot->id().at;
    return is_captured && at.timeline == id.at.timeline && at < id.at;
  });
}

bool SlotTable::retire_if(const std::function<bool(const format::ShardId& id)>& is_useless) {
  check_invariants();
  bool has_retired = false;
  const auto consider = [&](Slot& slot) {
    if (!is_occupied(slot) || slot.is_retiring() || !is_useless(slot.id())) return;
    slot.retire();
    has_retired = true;
  };
  for (auto& [rank, own_slots] : own_) {
    for (OwnSlot& own_slot : own_slots.slots) consider(*own_slot.slot);
  }
  for (auto& [rank, slots] : replicas_) {
    for (auto& slot : slots) consider(*slot);
  }
  for (auto& slot : old_) consider(*slot);
  sweep_old();
  check_invariants();
  return has_retired;
}

// While the Lease lives, its Slot has the bytes that were read.
void SlotTable::quarantine(const arena::Lease& damaged) {
  check_invariants();
  Slot& slot = damaged.slot();
  if (!is_readable(slot)) return;
  const format::ShardId id = slot.id();
  const Digest digest = slot.digest();
  log_warning("job={} step={} rank={} a copy in memory failed verification and is not used again",
              job_, number(id.at.step), id.rank);
  std::optional<arena::Lease> kept;
  if (put_aside_.is_open()) kept.emplace(slot.shared_from_this());
  slot.quarantine();
  slot.retire();
  if (kept) put_aside_.add(std::move(*kept));
  quarantined_.emplace_back(id, digest);
  CKPT_ASSERT(find(id, digest).get() != &slot);
  check_invariants();
}

bool SlotTable::keep_damaged(bool keeps) {
  const bool has_given = put_aside_.set_open(keeps);
  if (has_given) sweep_old();
  return has_given;
}

bool SlotTable::let_go_damaged(std::optional<std::uint32_t> rank) {
  const bool has_given = put_aside_.let_go(rank);
  if (has_given) sweep_old();
  return has_given;
}

void SlotTable::discard(std::shared_ptr<Slot> slot) {
  CKPT_ASSERT(slot != nullptr);
  old_.push_back(std::move(slot));
  sweep_old();
}

void SlotTable::sweep_old() {
  std::erase_if(old_, [&](const std::shared_ptr<Slot>& slot) {
    if (slot->state() != Slot::State::free) return false;
    CKPT_ASSERT(!slot->is_leased());
    CKPT_ASSERT(slot->capacity() <= bytes_);
    context_.budget.release(slot->capacity());
    bytes_ -= slot->capacity();
    return true;
  });
}

void SlotTable::free_all() {
  (void)let_go_damaged();
  for (auto& [rank, own_slots] : own_) {
    for (OwnSlot& own_slot : own_slots.slots) {
      const Slot::State state = own_slot.slot->state();
      if (state == Slot::State::filling || state == Slot::State::filled) own_slot.slot->abandon();
      own_slot.rest.reset();
      old_.push_back(std::move(own_slot.slot));
    }
    own_slots.slots.clear();
    own_slots.slot_bytes = 0;
  }
  for (auto& [rank, slots] : replicas_) {
    // A copy that is being received is abandoned by its receiver, which finds the job gone.
    for (auto& slot : slots) old_.push_back(std::move(slot));
    slots.clear();
  }
  retire_if([](const format::ShardId&) { return true; });
}

}  // namespace ckpt::node
