// PieceReader: fills memory with pieces of a checkpoint's tensors, whichever ranks saved them.
//
//   1. Reads from each rank's part what it has of the wanted tensors.
//   2. Plans which bytes of which shard go where (plan/planner.hpp).
//   3. Reads each Chunk that the plan needs once, verifies it, and copies from it.
//
// Whole tensors of one name in the shards of several ranks are nobody's copies: nothing says that
// their bytes are equal. Only the rank that saved one may read it, and only in a world of the same
// size, where its number means the same.
//
// Memory: some Chunks, and less than 100 bytes for each piece of a wanted name.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "os/file_system.hpp"
#include "plan/planner.hpp"
#include "storage/member_writer.hpp"

namespace ckpt::gather {

struct WantedPiece {
  plan::Want want;
  std::span<std::byte> target;    // Of the want's size. Lives until the Task ends.
  std::vector<std::string> also;  // Other names of that memory here, and so in the checkpoint.
};

struct Reader {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
};

// `hooks.verified` counts bytes that were copied. Errors: invalid_argument (no shard has a tensor
// or some of its elements, or it has another type or shape, or two names of one memory have two
// there: names them), unsupported (a whole
// tensor of several ranks, and the reader is none of them), corruption (names file and Chunk, or a
// part), io.
Task<void> read_pieces(os::FileSystem& files, std::string step_directory,
                       std::shared_ptr<const format::Manifest> manifest, Reader reader,
                       std::vector<WantedPiece> wants, storage::TransferHooks hooks);

}  // namespace ckpt::gather
