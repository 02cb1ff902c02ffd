// StorageRead: what `ls` and `verify` have in common: a directory of checkpoints, read.
#pragma once

#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/workplace.hpp"
#include "storage/catalog.hpp"

namespace ckpt::cli {

// The catalog; among what it rejects also the files beside the checkpoints (run.json,
// timelines.json, `latest`) where they are damaged or missing. Changes nothing there.
// Errors: not_found (says what to do), io.
Result<storage::Catalog> read_directory(Workplace& workplace, const std::string& directory);

// The one that a restore takes; none: all were abandoned by restores to older steps.
const storage::Checkpoint* newest_living(const storage::Catalog& catalog);

Json to_json(const std::vector<storage::Rejected>& rejected);
// One line each, or nothing.
std::string describe(const std::vector<storage::Rejected>& rejected);
// Some are damaged, and not just replaced or somebody else's.
bool has_damaged(const std::vector<storage::Rejected>& rejected);

}  // namespace ckpt::cli
