// RunCheck: the checkpoints of a directory, and what is wrong with the files beside them, for
// people who look at it without a job.
#pragma once

#include "storage/catalog.hpp"

namespace ckpt::storage {

// Returns the catalog, with abandoned checkpoints marked. Its rejected entries include the marker,
// the history and `latest`, if they are damaged or missing. Changes nothing there. Errors:
// not_found (no such directory), io; with the cause ENOTDIR it is a file.
Task<Catalog> check_run(Site site);

// It could not be read, or a newer version of libckpt wrote it: that says nothing of its bytes.
bool may_be_good(Errc code);

}  // namespace ckpt::storage
