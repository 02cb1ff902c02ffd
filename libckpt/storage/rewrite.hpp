// Rewrite: replaces the damaged files of one rank in a published checkpoint by what memory has.
//
// All files of the rank are written aside, compared with the manifest, and put in the places of the
// old ones (replacement.hpp). Compressed files become the same bytes with the same compression and
// library; else nothing is replaced.
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
