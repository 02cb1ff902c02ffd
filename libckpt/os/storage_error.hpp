// StorageError: maps an errno of the disk to an Errc; one table for all three FileSystems.
#pragma once

#include <ckpt/result.hpp>
#include <source_location>
#include <string>

namespace ckpt::os {

Errc classify_storage_error(int error);

// `return storage_failure(ENOSPC, "write /scratch/run/step-000000007/rank-00000.safetensors");`
Unexpected storage_failure(int error, std::string text,
                           std::source_location where = std::source_location::current());

// The same for a clone: whatever says that files cannot share these bytes is `unsupported`.
Unexpected clone_failure(int error, std::string text,
                         std::source_location where = std::source_location::current());

}  // namespace ckpt::os
