#include <fmt/format.h>

#include "base/assert.hpp"
#include "node/slot_table.hpp"

namespace ckpt::node {

using arena::Slot;

// Those that are granted, too: without its trainer, or for its restore, nobody begins to fill them.
bool SlotTable::let_go_free_own(std::uint32_t rank) {
  OwnSlots& own_slots = own_[rank];
  if (own_slots.is_allocating) return false;
  check_invariants();
  const std::size_t count = own_slots.slots.size();
  for (OwnSlot& own_slot : own_slots.slots)
    if (own_slot.slot->state() == Slot::State::free) discard(std::move(own_slot.slot));
  std::erase_if(own_slots.slots, [](const OwnSlot& own_slot) { return own_slot.slot == nullptr; });
  if (own_slots.slots.empty()) own_slots.slot_bytes = 0;
  check_invariants();
  return own_slots.slots.size() < count;
}

bool SlotTable::has_occupied(format::StepId at) const {
  bool has_one = false;
  for_each([&](const Slot& slot) {
    has_one = has_one || (slot.state() != Slot::State::free && slot.id().at == at);
  });
  return has_one;
}

void SlotTable::for_each(const std::function<void(const Slot& slot)>& visit) const {
  for (const auto& [rank, own_slots] : own_) {
    for (const OwnSlot& own_slot : own_slots.slots) visit(*own_slot.slot);
  }
  for (const auto& [rank, slots] : replicas_) {
    for (const auto& slot : slots) visit(*slot);
  }
  for (const auto& slot : old_) visit(*slot);
}

std::string SlotTable::used_by(std::uint64_t given_back) const {
  std::map<format::StepId, std::uint64_t> by_steps;
  std::uint64_t without_step = being_made_bytes_;
  for_each([&](const Slot& slot) {
    const bool is_free = slot.state() == Slot::State::free;
    (is_free ? without_step : by_steps[slot.id().at]) += slot.capacity();
  });
  CKPT_ASSERT(given_back <= without_step);
  std::string text;
  for (const auto& [at, bytes] : by_steps)
    text += fmt::format("{} by step {}, ", arena::human_bytes(bytes), number(at.step));
  CKPT_ASSERT(bytes_ <= context_.budget.used_bytes());
  return fmt::format("{}{} by free Slots, {} by other jobs", text,
                     arena::human_bytes(without_step - given_back),
                     arena::human_bytes(context_.budget.used_bytes() - bytes_));
}

}  // namespace ckpt::node
