// Batches: whole tensors cut into stretches that fit a buffer, and the reading of one buffer.
//
//   make_batches -> for each batch: read_batch -> memory in the order of the tensors
//
// A reader of all of a step needs no memory for all of it.
#pragma once

#include <ckpt/tensor.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gather/piece_reader.hpp"

namespace ckpt::gather {

struct TensorToRead {
  std::string name;
  std::vector<std::string> part_names;  // As a ListedTensor has them.
  DType dtype = DType::u8;
  std::vector<std::uint64_t> shape;  // The whole tensor's, as it is stored.
  std::vector<std::uint8_t> order;   // Its dimensions as they are wanted, slowest first. Empty: as
                                     // they are.
  // A whole tensor that several ranks have is taken from this one; its number has no other meaning.
  std::uint32_t rank = 0;
};

struct Slice {
  std::size_t tensor = 0;
  std::uint64_t offset = 0;  // In the tensor as it is wanted.
  std::uint64_t bytes = 0;
  Box box;
};
using Batch = std::vector<Slice>;
std::uint64_t bytes_of(const Batch& batch);

// Cuts the tensors, in their order. Each batch has at least one element, and at most `bytes_max`
// if that is an element or more.
std::vector<Batch> make_batches(std::span<const TensorToRead> tensors, std::uint64_t bytes_max);

// Fills `target`, of the batch's size, with one slice behind the other. All references live until
// the Task ends. Errors: those of read_pieces.
Task<void> read_batch(ShardSource& source, std::span<const TensorToRead> tensors, Batch batch,
                      std::span<std::byte> target, storage::TransferHooks hooks);
// Checks that all elements of all tensors are there, and reads none. Errors: those of read_pieces.
Task<void> check_tensors(ShardSource& source, std::span<const TensorToRead> tensors);

}  // namespace ckpt::gather
