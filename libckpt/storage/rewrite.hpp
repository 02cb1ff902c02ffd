// Rewrite: replaces the damaged files of one rank in a published checkpoint by what memory has.
//
// The new files are written beside the old ones under the names of a turn, synced, compared with
// the manifest, and renamed over the old ones. So the manifest stays as it is, a reader sees an old
// file or a new one, and an attempt that breaks off leaves files that go with the checkpoint.
// Compressed files become the same bytes with the same compression and library; else nothing is
// replaced. In a bucket each object is replaced whole.
// Compressed files become the same bytes with the same compression and library; else nothing is
// replaced. In a bucket each object is replaced whole.
#pragma once

#include <cstdint>
#include <string>

#include "storage/member_writer.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// `name` is that of the checkpoint's directory. `source.turn` is random and not 0. Errors:
// not_found (no such checkpoint), invalid_argument (it holds another save of the step), unsupported
// (a checkpoint of version 1), corruption (the Slot is damaged; nothing was replaced),
// exhausted, io.
Task<void> rewrite_shard(Site site, std::string name, ShardToWrite source, TransferHooks hooks);

}  // namespace ckpt::storage
