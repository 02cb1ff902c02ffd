// StepDifference: differences of the tensors of two checkpoints, whichever ranks saved them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/element_difference.hpp"
#include "cli/stored_step.hpp"
#include "cli/tensor_choice.hpp"

namespace ckpt::cli {

enum class DifferenceKind : std::uint8_t {
  values,
  type,
  shape,
  only_in_one,
  only_in_other,
  blob,  // Its bytes or its size.
};
std::string_view name_of(DifferenceKind kind);

struct Difference {
  std::string name;
  std::optional<std::uint32_t> rank;  // For state that each rank has for itself.
  DifferenceKind kind = DifferenceKind::values;
  std::string one, other;      // The types or the shapes.
  DType dtype = DType::u8;     // The values' type.
  std::uint64_t elements = 0;  // Likewise.
  ElementDifference values;
};

struct StepDifference {
  std::uint64_t tensors_compared = 0;  // In both, of one type and shape.
  std::uint64_t blobs_compared = 0;
  std::vector<Difference> differences;  // By the order of tensors, then blobs.
};

// `buffer_bytes` are taken twice. The blobs of ranks are compared if as many ranks saved both.
// Errors: not_found (no name is chosen), and those of reading.
Task<StepDifference> compare_steps(std::shared_ptr<StoredStep> one,
                                   std::shared_ptr<StoredStep> other, TensorChoice choice,
                                   std::uint64_t buffer_bytes);

}  // namespace ckpt::cli
