// PoolFileSystem: the FileSystem seam on a few threads that block, for places without io_uring.
//
// It has the same O_DIRECT discipline as the ring: aligned ranges bypass the page cache, the rest
// is buffered and then dropped from it. A call that hangs blocks one of `disk_thread_count`
// threads, never the caller. When all of them hang, every call of this FileSystem waits.
//
// Threads:  call from one executor.
// Lifetime: files must not outlive it. Destroy it before the executor's context. Its destructor
//           waits for running calls.
#pragma once

#include <memory>

#include "os/disk_threads.hpp"
#include "os/file_system.hpp"

namespace ckpt::os {

std::unique_ptr<FileSystem> make_pool_file_system(std::size_t threads = disk_thread_count,
                                                  DiskPriority priority = DiskPriority::background);

}  // namespace ckpt::os
