// Wants: what a reader wants of a step, and the memory that it goes to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/planner.hpp"

namespace ckpt::gather {

// ReaderRank: the rank that wants the bytes, and how many ranks want theirs.
struct ReaderRank {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
};

struct WantedPiece {
  plan::Want want;
  std::span<std::byte> target;    // As large as the want. Lives until the Task ends.
  std::vector<std::string> also;  // Other names of that memory here, and so in the checkpoint.
  // Names under which shards have parts of the tensor, in addition to its own.
  std::vector<std::string> part_names;
};

// Bytes that are wanted as one rank's shard has them, whatever they are.
struct WantedBytes {
  std::uint32_t rank = 0;
  std::uint64_t offset = 0;     // In that shard.
  std::span<std::byte> target;  // Lives until the Task ends.
};

struct Wants {
  std::vector<WantedPiece> pieces;
  std::vector<WantedBytes> bytes;
};

}  // namespace ckpt::gather
