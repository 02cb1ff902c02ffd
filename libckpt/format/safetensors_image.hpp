// SafetensorsImage: a safetensors file's description of itself, checked before it is believed.
//
// Accepts only files that the reference implementation accepts: tensors cover the data without
// overlap, hole or rest, and products do not wrap. Stricter than it: no repeated names, no unknown
// members, and the limits of layout.hpp.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "format/layout.hpp"

namespace ckpt::format {

struct ImageTensor {
  std::string name;
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape;
  Extent extent;  // In the file, from its first byte.
  bool operator==(const ImageTensor&) const = default;
};

struct SafetensorsImage {
  std::uint64_t header_bytes = 0;  // The length field, the JSON text and its padding.
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<ImageTensor> tensors;  // In file order.
};

// From the file's first 8 bytes, returns how much of its front `parse_safetensors` needs. Errors:
// corruption (a length above the file or above 100 MB).
Result<std::uint64_t> safetensors_header_bytes(std::span<const std::byte> front,
                                               std::uint64_t file_bytes);

// `front` holds at least the header. Errors: corruption, with the tensor's name; unsupported (an
// unknown type, or more tensors than we allow).
Result<SafetensorsImage> parse_safetensors(std::span<const std::byte> front,
                                           std::uint64_t file_bytes);

}  // namespace ckpt::format
