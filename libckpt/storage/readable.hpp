// Readable: whether the files of a checkpoint may be read at all.
//
// The file system refuses those of another user, and fails where a disk or a server does. Either
// says nothing about their bytes. Such a checkpoint may be good: nothing of ours deletes or
// replaces it.
#pragma once

#include <memory>
#include <string>

#include "format/manifest.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// Opens each file that the manifest names; a missing one is damage, and no objection here. Errors:
// unavailable (the first file that could not be opened, and why).
Task<void> check_readable(Site site, std::string name,
                          std::shared_ptr<const format::Manifest> manifest);

}  // namespace ckpt::storage
