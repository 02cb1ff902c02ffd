// WantedShard: a shard as its reader would save it, put together from a step that any number of
// ranks saved.
//
//   shape_shard -> memory of record.bytes -> fill_shard
//
// The blobs of a rank are its own. A reader of another number of ranks gets those of its rank
// modulo the number that saved.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "format/shard_record.hpp"
#include "gather/piece_reader.hpp"

namespace ckpt::gather {

// The rank whose blobs a reader gets.
std::uint32_t rank_of_blobs(const ShardSource& source, const ReaderRank& reader);

struct ShardWish {
  std::vector<format::TensorSpec> tensors;
  // From these only what is a piece, here or in some shard, and what a single shard has as a whole
  // that is not joined; not what no shard has. In addition, every whole tensor of the shard that
  // the blobs are from, and of those that no reader of this number of ranks begins with: rank + n,
  // rank + 2n, ..., by the names that other_rank_prefix says; and of each larger tensor that these
  // shards have a piece of and nobody wants here, an empty part: so its reader hears of it. For
  // frameworks that know only from the blobs what a shard has.
  bool joins_shards = false;
};

struct ShapedShard {
  format::ShardRecord record;  // Its checksums are added by fill_shard().
  // A place for things taken as one shard has them: whole tensors, by name, and the blobs.
  struct Location {
    std::uint32_t rank = 0;
    std::uint64_t offset = 0;
  };
  std::map<std::string, Location> whole_tensors;
  Location blobs;
};

// Lays out what is wanted. Errors: invalid_argument (the tensors), and those of the source.
Task<ShapedShard> shape_shard(ShardSource& source, ReaderRank reader, ShardWish wish);

// Fills `target`, of record.bytes, and adds its checksums. They are those of what was verified at
// its source, and between tensors those of whatever lies there. All references live until the Task
// ends. Errors: those of read_pieces.
Task<void> fill_shard(ShardSource& source, ReaderRank reader, ShapedShard& shaped,
                      std::span<std::byte> target, storage::TransferHooks hooks);

}  // namespace ckpt::gather
