#include "client/session_slots.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace ckpt::client {

bool SessionSlots::holds(const Grant& grant) const {
  return grant.slot < slots_.size() && slots_[grant.slot].generation == grant.mapped.generation;
}

SessionSlots::Cleared SessionSlots::replace(std::vector<MappedSlot> slots) {
  Cleared old;
  old.slots = std::exchange(slots_, std::move(slots));
  for (Grant& grant : std::exchange(granted_, {})) {
    auto& to = holds(grant) ? granted_ : old.granted;
    to.push_back(std::move(grant));
  }
  return old;
}

bool SessionSlots::grant(std::uint32_t slot) {
  if (slot >= slots_.size()) return false;
  const auto is_same = [slot](const Grant& grant) { return grant.slot == slot; };
  if (std::ranges::none_of(granted_, is_same)) granted_.push_back({slot, slots_[slot]});
  return true;
}

SessionSlots::Cleared SessionSlots::void_grants() {
  Cleared old;
  old.granted.swap(granted_);
  return old;
}

SessionSlots::Cleared SessionSlots::clear() {
  Cleared old;
  old.slots.swap(slots_);
  old.granted.swap(granted_);
  return old;
}

SessionSlots::Cleared SessionSlots::clear_all() {
  Cleared old = clear();
  old.taken.swap(taken_);
  return old;
}

std::optional<TakenSlot> SessionSlots::take() {
  const auto found =
      std::ranges::find_if(granted_, [&](const Grant& grant) { return fits(grant.mapped); });
  if (found == granted_.end()) return std::nullopt;
  TakenSlot taken{found->slot, found->mapped.generation, found->mapped.bytes};
  taken_.push_back(std::move(*found));
  granted_.erase(found);
  return taken;
}

MappedSlot SessionSlots::give_back(const TakenSlot& taken) {
  const auto found = std::ranges::find_if(taken_, [&](const Grant& each) {
    return each.slot == taken.slot && each.mapped.generation == taken.generation;
  });
  if (found == taken_.end()) return {};
  MappedSlot mapped = std::move(found->mapped);
  taken_.erase(found);
  return mapped;
}

MappedSlot SessionSlots::mapped(std::uint32_t slot) const {
  return slot < slots_.size() ? slots_[slot] : MappedSlot();
}

bool SessionSlots::are_big_enough() const {
  return std::ranges::any_of(
      slots_, [&](const MappedSlot& slot) { return fits(slot) && !slot.is_for_restore; });
}

bool SessionSlots::can_restore() const {
  return std::ranges::any_of(slots_, [&](const MappedSlot& slot) { return fits(slot); });
}

bool SessionSlots::has_fitting_grant() const {
  return std::ranges::any_of(granted_, [&](const Grant& grant) { return fits(grant.mapped); });
}

void SessionSlots::check_invariants() const {
  for (std::size_t index = 0; index < granted_.size(); ++index) {
    CKPT_ASSERT(holds(granted_[index]));
    for (std::size_t before = 0; before < index; ++before)
      CKPT_ASSERT(granted_[before].slot != granted_[index].slot);
  }
}

}  // namespace ckpt::client
