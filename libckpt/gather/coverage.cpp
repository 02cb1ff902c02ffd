#include "gather/coverage.hpp"

#include <fmt/format.h>

#include "format/piece.hpp"
#include "plan/planner.hpp"

namespace ckpt::gather {

namespace {

bool has_pieces(const ListedTensor& tensor) {
  for (const HeldPart& part : tensor.parts)
    if (part.place->piece) return true;
  return false;
}

// Empty: all of it is there, or nobody can say what the whole is.
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
    std::string gap = gap_of(tensor);
    if (gap.empty()) continue;
    if (missing.tensors++ > 0) continue;
    missing.tensor = tensor.name;
    missing.what = std::move(gap);
  }
  return missing;
}

std::string in_words(const Missing& missing) {
  if (missing.tensors == 0) return {};
  return fmt::format(
      "{}, which no rank has saved{}", missing.what,
      missing.tensors == 1 ? "" : fmt::format(", and parts of {} more", missing.tensors - 1));
}

}  // namespace ckpt::gather
