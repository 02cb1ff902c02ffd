// Orphans: checkpoints in a directory that does not say they are its own.
//
// `cp -r DIR/* ELSEWHERE` leaves the hidden marker behind. What was copied must neither be taken
// for nothing, so that a trainer begins anew beside it, nor be guessed to be of this job.
#pragma once

#include <optional>
#include <string>

#include "storage/catalog.hpp"

namespace ckpt::storage {

// Checkpoints that lie here while the marker is missing (no `run`), or names `run` and none is of
// it. Empty: there are none such, all is well. Else a text for people: how many, which, whose.
std::string describe_orphans(const Catalog& catalog, std::optional<format::RunId> run);

// The error that names the directory, the checkpoints and what to do. Its code is corruption.
Error orphans_error(const std::string& directory, const std::string& orphans);

}  // namespace ckpt::storage
