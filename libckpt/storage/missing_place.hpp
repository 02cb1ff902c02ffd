// MissingPlace: whether the opening of a job's directory would make it.
//
// A job that finds nothing in a directory that was made for it may have been given the wrong one.
#pragma once

#include "storage/site.hpp"

namespace ckpt::storage {

// In a bucket nothing is made: false. Errors: io.
Task<bool> is_missing(Site site);

}  // namespace ckpt::storage
