// Latest: the file `latest` of a directory or bucket, a hint that names its newest checkpoint.
//
// It is written after a step was published, and steps are removed without it. So a death between
// the two, or a hand that removes steps, leaves a name that leads nowhere, or to an older step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/manifest.hpp"
#include "storage/catalog.hpp"
#include "storage/site.hpp"

namespace ckpt::storage {

// Its bytes. Errors: not_found (there is none), io.
Task<std::string> read_latest(Site site);

// Lets it name the newest of the checkpoints that is not abandoned. A file that holds anything but
// the name of a step's directory belongs to somebody else, and stays. So does one that names a
// newer step which could not be read: it may be good. Without a checkpoint a name of ours is
// removed. True: something was changed. Errors: exhausted, io.
Task<bool> mend_latest(Site site, format::RunId run, Catalog catalog, std::uint64_t attempt);

}  // namespace ckpt::storage
