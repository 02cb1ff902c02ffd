#include "storage/last_whole.hpp"

#include "base/assert.hpp"

namespace ckpt::storage {

void LastWhole::add(format::StepId at, std::optional<std::size_t> tensors) {
  CKPT_ASSERT(!is_found());
  if (first_.size() < 2) first_.push_back(at);
  if (!tensors || (fewest_ && *tensors >= *fewest_)) return;
  fewest_ = tensors;
  best_ = at;
}

std::optional<format::StepId> LastWhole::step() const {
  if (best_) return best_;
  if (first_.empty()) return std::nullopt;
  return first_.back();
}

}  // namespace ckpt::storage
