// SlotAreas: which area of sums describes what each Slot holds. Pure.
//
//   begin: the Slot's area becomes `before`, and a free one `now`
//      --keep--> `now` describes the Slot, and `before` is free
//      --drop--> nothing describes the Slot, and both are free
//
// Invariants: at most one area describes a Slot. While a capture runs, none describes its Slot:
//             what it holds is known again once the capture has ended well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ckpt::device {

class SlotAreas {
 public:
  // One area more than there are Slots.
  explicit SlotAreas(std::size_t slots) : slot_of_(slots + 1) {}

  struct Pair {
    std::optional<std::size_t> before;  // None: it is not known what the Slot holds.
    std::size_t now = 0;
  };
  std::size_t count() const { return slot_of_.size(); }

  // `generation`: that of the Slot; 0: nobody knows it, and nothing is remembered of it. Where
  // there are more Slots than areas, the one that was described first is forgotten.
  Pair begin(std::uint64_t generation);
  // Once for each begin.
  void keep();
  void drop();
  // Between captures: nobody knows what the Slots hold.
  void forget();

 private:
  struct Described {
    std::uint64_t generation = 0;  // 0: the area is free.
    std::uint64_t since = 0;       // Counts captures.
  };

  std::vector<Described> slot_of_;
  std::optional<std::size_t> filling_;  // The area of the capture that runs.
  std::uint64_t generation_ = 0;        // Its Slot's.
  std::uint64_t captures_ = 0;
};

}  // namespace ckpt::device
