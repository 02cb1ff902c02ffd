#include "gather/seen_forms.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

std::string contradiction_of(std::string_view tensor, const SeenForms& forms) {
  CKPT_ASSERT(forms.other().has_value());
  const SeenForm& first = *forms.first();
  const SeenForm& other = *forms.other();
  return fmt::format(
      "tensor \"{}\" is {} [{}] as rank {} saved it, and {} [{}] as rank {} did: parts of one "
      "tensor have one type and one global shape",
      tensor, safetensors_name(first.dtype), fmt::join(first.shape, ", "), first.rank,
      safetensors_name(other.dtype), fmt::join(other.shape, ", "), other.rank);
}

}  // namespace ckpt::gather
