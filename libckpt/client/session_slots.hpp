// SessionSlots: the Slots of one session: which are mapped, which we may take, which we write into.
//
//   mapped --grant--> granted --take--> taken --give_back--> mapped
//                        +--begun, clear, a new set of Slots--> mapped
//
// Invariants: a grant names a mapped Slot of the same generation, and each Slot is granted once.
// Threads:    under the lock of LinkState. The caller releases returned mappings outside of that
//             lock, since large ones take long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace ckpt::client {

// MappedSlot: one of our Slots as this process sees it. `owner` keeps it mapped.
struct MappedSlot {
  std::uint64_t generation = 0;
  std::span<std::byte> bytes;
  std::shared_ptr<const void> owner;
  bool is_for_restore = false;  // No capture gets it, or not before the others are made.
};

// TakenSlot: a Slot of ours that a capture fills, large enough for the newest layout.
struct TakenSlot {
  std::uint32_t slot = 0;
  std::uint64_t generation = 0;  // The mapping's; its daemon may be dead.
  std::span<std::byte> bytes;
};

class SessionSlots {
 public:
  struct Grant {
    std::uint32_t slot = 0;
    MappedSlot mapped;
  };
  struct Cleared {
    std::vector<MappedSlot> slots;
    std::deque<Grant> granted;
    std::vector<Grant> taken;
  };

  void ask(std::uint64_t slot_bytes) { slot_bytes_ = slot_bytes; }  // For the newest layout.
  std::uint64_t asked_bytes() const { return slot_bytes_; }

  // Grants of unchanged Slots stay valid, since the engine does not repeat them.
  Cleared replace(std::vector<MappedSlot> slots);
  bool grant(std::uint32_t slot);  // False: it is not mapped.
  // For a timeline that begins: its restore may have used Slots. The engine grants free ones again.
  Cleared void_grants();
  // Clears all but the taken ones.
  Cleared clear();
  Cleared clear_all();

  std::optional<TakenSlot> take();
  // Returns the mapping of the taken Slot; without an owner if it was given back before.
  MappedSlot give_back(const TakenSlot& taken);

  MappedSlot mapped(std::uint32_t slot) const;
  bool are_big_enough() const;  // At least one mapped Slot that is for captures.
  bool can_restore() const;     // The same of any mapped Slot.
  bool has_fitting_grant() const;
  bool has_taken() const { return !taken_.empty(); }
  bool is_empty() const { return slots_.empty() && granted_.empty(); }

  void check_invariants() const;

 private:
  bool fits(const MappedSlot& slot) const { return slot.bytes.size() >= slot_bytes_; }
  bool holds(const Grant& grant) const;

  std::uint64_t slot_bytes_ = 0;
  std::vector<MappedSlot> slots_;
  std::deque<Grant> granted_;
  std::vector<Grant> taken_;
};

}  // namespace ckpt::client
