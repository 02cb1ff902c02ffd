// CopyPacked: a compressed file is copied as it is: opening its frames would change no byte.
#pragma once

#include <string>

#include "format/part_front.hpp"
#include "os/file_system.hpp"
#include "storage/member_writer.hpp"

namespace ckpt::storage {

// The copy is synced. Errors: corruption (it is not what `stored` has sealed), io, exhausted.
Task<void> copy_packed(os::FileSystem& files, std::string from, std::string to,
                       format::StoredFile stored, const TransferHooks& hooks);

}  // namespace ckpt::storage
