// Unchanged: Chunks of a shard that equal those of an earlier step, its base, which both ends hold.
//
//   sender:   compares the bytes of both steps        SAME (chunk) instead of DATA
//   receiver: copies from its own copy of the base, and verifies what it has written
//
// Equal checksums only say which Chunks are worth a comparison: the sender compares their bytes.
// The receiver verifies the copied Chunk as it verifies one that has arrived.
#pragma once

#include "replicate/transfer.hpp"

namespace ckpt::replicate {

// Whether the Chunk has the same place, length and checksum in both. Only then may it be the same.
bool may_be_same(const format::ShardRecord& record, const format::ShardRecord& base,
                 std::size_t chunk);

// Compares the bytes. Errors: exhausted (no thread for it).
Task<bool> is_same(Compute* compute, SealedShard source, SealedShard base, std::size_t chunk);

// Copies the base's Chunk to `target`. False: it does not match `expected`, and the base is
// damaged. Errors: exhausted (no thread for it).
Task<bool> copy_same(Compute* compute, SealedShard base, std::size_t chunk,
                     std::span<std::byte> target, Crc32 expected);

}  // namespace ckpt::replicate
