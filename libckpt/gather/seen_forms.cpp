#include "gather/seen_forms.hpp"

#include <utility>

#include "base/assert.hpp"

namespace ckpt::gather {

void SeenForms::add(SeenForm seen) {
  if (!first_) {
    CKPT_ASSERT(!other_);
    first_ = std::move(seen);
    return;
  }
  const bool is_alike = seen.is_form_of(*first_);
  if (seen.rank < first_->rank) {
    std::swap(seen, *first_);
    if (!is_alike) other_ = std::move(seen);
  } else if (!is_alike && (!other_ || seen.rank < other_->rank)) {
    other_ = std::move(seen);
  }
  CKPT_ASSERT(!other_ || !other_->is_form_of(*first_));
  CKPT_ASSERT(!other_ || other_->rank >= first_->rank);
}

void SeenForms::add(const SeenForms& seen) {
  if (seen.first_) add(*seen.first_);
  if (seen.other_) add(*seen.other_);
}

}  // namespace ckpt::gather
