// Coverage: which elements of declared larger tensors no rank of a step has, and of which tensors
// the ranks declared different types or global shapes.
//
// Such a step can be stored and copied, and nobody notices before a restore wants the tensor.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gather/tensor_list.hpp"

namespace ckpt::gather {

// Planning takes some microseconds for each piece.
inline constexpr std::size_t coverage_pieces_max = 200'000;

struct Missing {
  std::size_t tensors = 0;    // Those with a gap or a contradiction.
  std::string tensor;         // The first of them in the list,
  std::string what;           // and its first elements that nobody has: "w[512:1024, :]";
  std::string contradiction;  // or the ranks that contradict each other, in words. Then no `what`.
  bool is_left_out = false;   // There are too many pieces: nothing was looked at.
};

Missing find_missing(const std::vector<ListedTensor>& tensors);
// Behind "stored": "without w[512:1024, :], which no rank has saved, and parts of 2 more: a reader
// of the whole tensor will fail". Empty: nothing is missing.
std::string in_words(const Missing& missing);

}  // namespace ckpt::gather
