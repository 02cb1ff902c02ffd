// AnyFileSystem: a disk's FileSystem that also takes paths of buckets.
//
// The first path of a bucket looks for libcurl, keys and an endpoint. Without them, calls for
// buckets fail, and the disk's go on.
//
// Threads:  one executor. Lifetime: as the disk's; `clock` outlives it.
#pragma once

#include <functional>
#include <memory>

#include "base/clock.hpp"
#include "bucket/bucket_file_system.hpp"
#include "bucket/patience.hpp"
#include "os/disk_threads.hpp"
#include "os/file_system.hpp"

namespace ckpt::bucket {

std::unique_ptr<os::FileSystem> with_buckets(std::unique_ptr<os::FileSystem> disk, Clock& clock,
                                             os::DiskPriority priority, BucketUse use = {});

// `open` is called at the first path of a scheme, once.
using OpenBuckets = std::function<Result<std::unique_ptr<BucketFileSystem>>(Scheme)>;
std::unique_ptr<os::FileSystem> with_buckets(std::unique_ptr<os::FileSystem> disk,
                                             OpenBuckets open);

}  // namespace ckpt::bucket
