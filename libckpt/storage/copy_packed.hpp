// CopyPacked: a file is copied as it is stored, compressed or not, and compared with its seal.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "format/part_front.hpp"
#include "os/file_system.hpp"
#include "storage/member_writer.hpp"
#include "storage/shard_files.hpp"

namespace ckpt::storage {

// The copy has all its bytes, and is not synced: in a bucket it takes no object's place before.
// Errors: as the next.
Task<std::unique_ptr<os::File>> begin_packed_copy(os::FileSystem& files, std::string from,
                                                  std::string to, format::StoredFile stored,
                                                  const TransferHooks& hooks);

// The copy is synced. Errors: corruption (it is not what `stored` has sealed), io, exhausted.
Task<void> copy_packed(os::FileSystem& files, std::string from, std::string to,
                       format::StoredFile stored, const TransferHooks& hooks);
// The member's file as the first place has it, from whichever place has that file whole. Errors: as
// above.
Task<void> copy_packed_from(os::FileSystem& files, std::vector<ShardPlace> places,
                            std::size_t member, std::string to, const TransferHooks& hooks);

}  // namespace ckpt::storage
