#include "device/slot_areas.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace ckpt::device {

SlotAreas::Pair SlotAreas::begin(std::uint64_t generation) {
  CKPT_ASSERT(!filling_.has_value());
  CKPT_ASSERT(slot_of_.size() >= 2);
  Pair areas;
  for (std::size_t area = 0; generation != 0 && area < slot_of_.size(); ++area) {
    if (slot_of_[area].generation == generation) areas.before = area;
  }
  // Described or not, it is not `now`.
  std::optional<std::size_t> oldest;
  for (std::size_t area = 0; area < slot_of_.size(); ++area) {
    if (area == areas.before) continue;
    const bool is_older = !oldest || slot_of_[area].since < slot_of_[*oldest].since;
    if (is_older) oldest = area;
  }
  areas.now = oldest.value();
  if (areas.before) slot_of_[*areas.before] = {};
  slot_of_[areas.now] = {};
  filling_ = areas.now;
  generation_ = generation;
  ++captures_;
  CKPT_ASSERT(areas.before != areas.now);
  return areas;
}

void SlotAreas::keep() {
  CKPT_ASSERT(filling_.has_value());
  CKPT_ASSERT(slot_of_[*filling_].generation == 0);
  if (generation_ != 0) slot_of_[*filling_] = {generation_, captures_};
  filling_.reset();
}

void SlotAreas::drop() {
  CKPT_ASSERT(filling_.has_value());
  CKPT_ASSERT(slot_of_[*filling_].generation == 0);
  filling_.reset();
}

void SlotAreas::forget() {
  CKPT_ASSERT(!filling_.has_value());
  std::ranges::fill(slot_of_, Described{});
}

}  // namespace ckpt::device
