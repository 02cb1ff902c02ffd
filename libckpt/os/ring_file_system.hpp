// RingFileSystem: the FileSystem seam on one io_uring, with O_DIRECT from and to the Slot's pages.
//
// Reads, writes and syncs go to the ring; opening, renaming and the like go to helper threads.
//
// Threads:  call from one executor.
// Lifetime: as for the pool: files must not outlive it; destroy it before the executor's context.
#pragma once

#include <memory>

#include "os/disk_threads.hpp"
#include "os/file_system.hpp"

namespace ckpt::os {

// Errors: unsupported (io_uring is refused, as in most containers).
Result<std::unique_ptr<FileSystem>> make_ring_file_system(
    DiskPriority priority = DiskPriority::background);

// Opens the ring, or else the pool; logs once why the ring was refused.
std::unique_ptr<FileSystem> make_file_system(DiskPriority priority = DiskPriority::background);

}  // namespace ckpt::os
