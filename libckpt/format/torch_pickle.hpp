// TorchPickle: finds the tensors in the pickle of a torch archive, without running what it says.
//
// A pickle is a program for a stack machine. This reader knows the few instructions that build
// containers, numbers and texts, and the few names that torch needs for tensors. Any other one is
// an error: nothing is imported, called or made beyond what the list in the .cpp has.
//
// Memory: that of PickleMachine. Shared objects are visited once for each name, at most
// `tensors_max` times in all.
#pragma once

#include <ckpt/result.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/layout.hpp"

namespace ckpt::format {

inline constexpr std::uint64_t torch_pickle_bytes_max = 64u << 20;

// Elements of a storage, which is the entry data/KEY of the archive.
struct PickledTensor {
  std::string name;  // The keys on the way to it: "model.layer.weight".
  DType dtype = DType::u8;
  std::vector<std::int64_t> shape;
  std::string storage;  // KEY.
  std::uint64_t storage_bytes = 0;
  std::uint64_t offset = 0;  // In bytes; the tensor lies inside of the storage.
};

struct PickledTensors {
  std::vector<PickledTensor> tensors;  // In the order of the pickle.
  std::size_t left_out = 0;            // Values that are no tensors.
};

// Errors: corruption (no pickle, a damaged one, or a tensor outside of its storage), unsupported
// (an instruction or a name that is not on the list; a tensor whose elements do not lie in
// row-major order, or of a type that we do not have).
Result<PickledTensors> read_torch_pickle(std::span<const std::byte> pickle);

}  // namespace ckpt::format
