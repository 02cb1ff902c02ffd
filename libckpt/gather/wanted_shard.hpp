// WantedShard: a shard as its reader would save it, put together from a checkpoint that any number
// of ranks saved.
//
//   shape_shard -> memory of record.bytes -> fill_shard
//
// The blobs of a rank are its own. A reader of another number of ranks gets those of its rank
// modulo the number that saved.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "format/shard_record.hpp"
#include "gather/piece_reader.hpp"
#include "os/file_system.hpp"
#include "storage/member_writer.hpp"

namespace ckpt::gather {

// Lays out the tensors that are wanted, and the blobs. The record lacks its checksums. Errors:
// invalid_argument (the tensors), corruption (a part), io.
Task<format::ShardRecord> shape_shard(os::FileSystem& files, std::string step_directory,
                                      std::shared_ptr<const format::Manifest> manifest,
                                      Reader reader, std::vector<format::TensorSpec> wanted);

// Fills `target`, of record.bytes, and adds the checksums of what lies there then. Both live until
// the Task ends. Errors: those of read_pieces.
Task<void> fill_shard(os::FileSystem& files, std::string step_directory,
                      std::shared_ptr<const format::Manifest> manifest, Reader reader,
                      format::ShardRecord& record, std::span<std::byte> target,
                      storage::TransferHooks hooks);

}  // namespace ckpt::gather
