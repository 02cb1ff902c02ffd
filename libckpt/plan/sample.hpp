// Sample: the bytes of a tensor that are compared between its copies at one step.
//
// All ranks compute it from the same numbers, so that all sample the same bytes without a word. A
// hash of the step chooses them, whatever the steps have in common: in the course of some times
// `parts` samples every byte has its turn.
#pragma once

#include <cstdint>
#include <optional>

namespace ckpt::plan {

// A sample of a tensor has at least this much; of a smaller tensor, all, but more rarely.
inline constexpr std::uint64_t sample_bytes_min = std::uint64_t{1} << 20;

struct Sample {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
struct SampledTensor {
  std::uint64_t bytes = 0;   // Not 0.
  std::uint32_t parts = 1;   // A sample is about one in so many of the bytes of all tensors.
  std::uint64_t spread = 0;  // Differs from tensor to tensor, and is the same on all ranks.
};
// None: it is not this tensor's turn.
std::optional<Sample> sample_of(const SampledTensor& tensor, std::uint64_t step);

}  // namespace ckpt::plan
