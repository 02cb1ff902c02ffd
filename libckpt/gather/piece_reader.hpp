// PieceReader: fills memory with pieces of a step's tensors, whichever ranks saved them.
//
//   1. Looks up what each rank's shard has of the wanted tensors, and keeps only what some want
//      overlaps (gather/found_pieces.hpp).
//   2. Plans which bytes of which shard go where (plan/planner.hpp): of copies that ranks declared,
//      the nearest.
//   3. Reads each Chunk that the plan needs once, verifies it, and copies from it. If no place
//      gives a Chunk, it plans again without that shard, twice at most, and reads the copies that
//      other ranks have.
//   4. For a reader who takes checksums of the targets: gives it those of long runs, from the pass
//      that verified them. Checks afterwards that short runs hold what was verified, and reads
//      again what does not (gather/shard_places.hpp).
//
// So a checksum never belongs to a bit that flipped in a target. The moments between the check of a
// Chunk that a peer sent into a buffer and the copy from there remain.
//
// Whole tensors of one name in the shards of several ranks are nobody's copies: nothing says that
// their bytes are equal. Only the rank that saved one may read it, and only in a world of the same
// size, where its number means the same.
//
// Memory: some Chunks; while it plans, what 16 shards have of the wanted names, and what is kept of
//         all of them: at most 8 copies of each region that a want overlaps, with 160 bytes for a
//         copy and 300 for a region; then 100 bytes for a copy, the plan, and the records of the
//         shards that it reads.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "gather/shard_places.hpp"
#include "gather/shard_source.hpp"
#include "gather/wants.hpp"
#include "storage/member_writer.hpp"

namespace ckpt::gather {

// `hooks.verified` counts bytes that were copied. Errors: invalid_argument (no shard has a tensor
// or some of its elements, or it has another type or shape, or two names of one memory have two
// there: names them), unsupported (a whole tensor of several ranks, and the reader is none of
// them), and those of the source.
Task<void> read_pieces(ShardSource& source, ReaderRank reader, Wants wants,
                       storage::TransferHooks hooks);
// Takes checksums of the targets: from `known`, in the order of memory, and of whatever else lies
// there. It may be called again.
using TakeChecksums = std::function<Task<void>(std::vector<RunSum> known)>;
// The same, and awaits `take_checksums` when all have come. `targets` has every target. If it
// succeeds, these checksums are those of what was verified. Errors: as above, and those of
// `take_checksums`; corruption also if a target changes each time.
Task<void> read_pieces(ShardSource& source, ReaderRank reader, Wants wants,
                       storage::TransferHooks hooks, TargetChunks targets,
                       TakeChecksums take_checksums);
// Returns the error of such a read before any Chunk is read. The pieces need no target.
Task<void> check_pieces(ShardSource& source, ReaderRank reader, std::vector<WantedPiece> pieces);

}  // namespace ckpt::gather
