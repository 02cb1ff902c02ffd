// SafetensorsPlain: the header of a safetensors file of whole tensors, as any program writes one.
//
// Unlike the header of a rank's file (safetensors_header.hpp) it has no room to spare, and nothing
// in it is of libckpt.
#pragma once

#include <ckpt/result.hpp>
#include <ckpt/tensor.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ckpt::format {

struct PlainTensor {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;
};

// The bytes in front of the data, of which each tensor has its own in this order, without a gap.
// The data begins at a multiple of 8. Errors: invalid_argument (a name that is empty, no UTF-8,
// "__metadata__" or there twice), exhausted (above 100 MB).
Result<std::vector<std::byte>> plain_header(
    std::span<const PlainTensor> tensors,
    std::span<const std::pair<std::string, std::string>> metadata);

}  // namespace ckpt::format
