#include "client/capture_share.hpp"

#include <utility>

#include "base/assert.hpp"
#include "format/piece.hpp"
#include "plan/share.hpp"

namespace ckpt::client {

namespace {

// As it lies in memory: the slowest dimension first.
std::vector<std::int64_t> shape_of(const Region& region, const std::vector<std::uint8_t>& order) {
  if (const auto* range = std::get_if<FlatRange>(&region))
    return {static_cast<std::int64_t>(range->count)};
  const Box& box = std::get<Box>(region);
  std::vector<std::int64_t> shape;
  for (std::size_t place = 0; place < box.shape.size(); ++place)
    shape.push_back(static_cast<std::int64_t>(box.shape[order.empty() ? place : order[place]]));
  return shape;
}

}  // namespace

std::optional<CaptureShare> share_of(const SharedTensor& shared, std::uint64_t small_limit) {
  const TensorRef& tensor = shared.tensor;
  CKPT_ASSERT(shared.copies > 0);
  // Some ranks may give a whole tensor as a box, and others as a range: all divide it alike.
  std::optional<Piece> part = tensor.piece;
  if (part) part->copy = 0;
  part = format::normalized(std::move(part), tensor.shape);
  const Region region = format::region_of(part, tensor.shape);
  plan::CopiedPiece copied{shared.name, tensor.dtype, region, {}, shared.copy, shared.copies};
  Piece piece;
  if (part) piece = *part;
  copied.order = piece.order;
  std::optional<plan::Share> share = plan::share_of(copied, small_limit);
  if (!share) return std::nullopt;
  if (copied.bytes() <= small_limit) return CaptureShare{tensor.shape, tensor.piece, 0};
  piece.global_shape = format::global_shape_of(part, tensor.shape);
  if (const auto* range = std::get_if<FlatRange>(&share->region)) {
    piece.flat_begin = range->begin;
  } else {
    piece.offset = std::get<Box>(share->region).offset;
  }
  CaptureShare own{shape_of(share->region, piece.order), {}, share->offset};
  piece.copy = 0;  // Nobody else captures these bytes.
  // For a whole tensor a copy's number says that it is not this rank's own, and that others may ask
  // for it.
  if (!format::normalized(piece, own.shape)) piece.copy = 1;
  own.piece = std::move(piece);
  return own;
}

}  // namespace ckpt::client
