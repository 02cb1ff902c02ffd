// CaptureShare: the part that a rank captures of a tensor that other ranks hold, too.
//
// It is a smaller piece of the same tensor, so that nothing behind the capture knows of copies.
// `plan/share.hpp` says which part is whose.
#pragma once

#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace ckpt::client {

struct CaptureShare {
  std::vector<std::int64_t> shape;
  std::optional<Piece> piece;
  std::uint64_t offset = 0;  // Where it begins in the tensor's memory, in bytes.
};

struct SharedTensor {
  std::string_view name;
  const TensorRef& tensor;  // Its piece has no problem.
  std::uint32_t copy = 0;   // The own number, less than `copies`.
  std::uint32_t copies = 0;
};

// Nothing: other ranks capture the tensor. Pieces of up to `small_limit` bytes are captured by
// every rank.
std::optional<CaptureShare> share_of(const SharedTensor& shared, std::uint64_t small_limit);

}  // namespace ckpt::client
