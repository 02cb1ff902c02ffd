// PosixClone: lets one file share bytes of another on the disk (clone_range), if that is still the
// file it was.
//
// The source is opened as any path is, for each range anew: component by component below the mark
// (os/path.hpp), and never through a link. So a file that was renamed away or removed is not found.
//
// Threads: any.
#pragma once

#include "os/posix_files.hpp"

namespace ckpt::os {

// Errors: those of File::clone_at.
Status clone_range(const OpenFile& target, const CloneRange& range, const CloneSource& source);

}  // namespace ckpt::os
