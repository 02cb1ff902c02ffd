#include "gather/coverage.hpp"

#include <fmt/format.h>

#include "format/piece.hpp"
#include "gather/seen_forms.hpp"
#include "plan/planner.hpp"

namespace ckpt::gather {

namespace {

bool has_pieces(const ListedTensor& tensor) {
  for (const HeldPart& part : tensor.parts)
    if (part.place->piece) return true;
  return false;
}

// The parts that a reader puts together. Whole tensors of several ranks may be each rank's own.
SeenForms forms_of(const ListedTensor& tensor) {
  const bool is_each_ranks_own = tensor.is_each_ranks_own();
  SeenForms forms;
  for (const HeldPart& part : tensor.parts) {
    const format::TensorPlace& place = *part.place;
    if (!place.piece && is_each_ranks_own) continue;
    forms.add({part.rank, place.dtype, format::global_shape_of(place.piece, place.shape)});
  }
  return forms;
}

// Empty: all of it is there.
std::string gap_of(const ListedTensor& tensor) {
  if (!tensor.is_alike || !tensor.whole_in().empty()) return {};
  plan::PieceIndex index;
  for (const HeldPart& part : tensor.parts) {
    plan::HeldPiece piece;
    piece.name = tensor.name;
    piece.dtype = tensor.dtype;
    piece.shape = tensor.shape;
    piece.region = format::region_of(part.place->piece, part.place->shape);
    if (!index.add(piece)) return {};
  }
  index.finish();
  plan::Want want;
  want.name = tensor.name;
  want.dtype = tensor.dtype;
  want.shape = tensor.shape;
  want.region = plan::whole(tensor.shape);
  const std::vector<plan::Want> wants{std::move(want)};
  const std::vector<plan::Holder> holders(1);
  const auto plan = plan::make_plan(index, wants, {holders, 0});
  if (!plan || plan->gaps.empty()) return {};
  return plan::describe(plan->gaps.front(), wants);
}

}  // namespace

Missing find_missing(const std::vector<ListedTensor>& tensors) {
  Missing missing;
  std::size_t pieces = 0;
  for (const ListedTensor& tensor : tensors) pieces += tensor.parts.size();
  missing.is_left_out = pieces > coverage_pieces_max;
  if (missing.is_left_out) return missing;
  for (const ListedTensor& tensor : tensors) {
    if (!has_pieces(tensor)) continue;
    const SeenForms forms = forms_of(tensor);
    std::string gap = forms.other() ? std::string() : gap_of(tensor);
    if (!forms.other() && gap.empty()) continue;
    if (missing.tensors++ > 0) continue;
    missing.tensor = tensor.name;
    missing.what = std::move(gap);
    if (forms.other()) missing.contradiction = contradiction_of(tensor.name, forms);
  }
  return missing;
}

std::string in_words(const Missing& missing) {
  if (missing.tensors == 0) return {};
  const std::size_t others = missing.tensors - 1;
  if (!missing.contradiction.empty())
    return fmt::format(
        "with a contradiction{}, so that only the same ranks can restore {}: {}",
        others == 0 ? "" : fmt::format(", and with holes or contradictions in {} more", others),
        others == 0 ? "it" : "them", missing.contradiction);
  return fmt::format(
      "without {}, which no rank has saved{}: a reader of the whole tensor will fail", missing.what,
      others == 0 ? "" : fmt::format(", and parts of {} more", others));
}

}  // namespace ckpt::gather
