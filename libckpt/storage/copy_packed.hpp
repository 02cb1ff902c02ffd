// CopyPacked: a file is copied as it is stored, compressed or not, and compared with its seal.
#pragma once

#include <memory>
#include <string>

#include "format/part_front.hpp"
#include "os/file_system.hpp"
#include "storage/member_writer.hpp"

namespace ckpt::storage {

// The copy has all its bytes, and is not synced: in a bucket it takes no object's place before.
// Errors: as the next.
Task<std::unique_ptr<os::File>> begin_packed_copy(os::FileSystem& files, std::string from,
                                                  std::string to, format::StoredFile stored,
                                                  const TransferHooks& hooks);

// The copy is synced. Errors: corruption (it is not what `stored` has sealed), io, exhausted.
Task<void> copy_packed(os::FileSystem& files, std::string from, std::string to,
                       format::StoredFile stored, const TransferHooks& hooks);

}  // namespace ckpt::storage
