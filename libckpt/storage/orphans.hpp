// Orphans: checkpoints in a directory whose marker does not claim them.
//
// `cp -r DIR/* ELSEWHERE` leaves the hidden marker behind. The copies must not be ignored, or a
// trainer would start from scratch beside them. Nor may they be assumed to be of this job.
#pragma once

#include <optional>
#include <string>

#include "storage/catalog.hpp"

namespace ckpt::storage {

// Describes, for people, the checkpoints that no marker claims: there is none (no `run`), or it
// names `run` and none of them is of that run. Says how many, which and whose. Empty: there are
// none.
std::string describe_orphans(const Catalog& catalog, std::optional<format::RunId> run);

// The error that names the directory, the checkpoints and what to do. Its code is corruption.
Error orphans_error(const std::string& directory, const std::string& orphans);

// Adds to the error of a damaged marker what to do. Leaves any other error as it is.
Error damaged_marker_error(const std::string& directory, const Error& error);

}  // namespace ckpt::storage
