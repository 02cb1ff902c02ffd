// StorageRead: reads a directory of checkpoints, for `ls` and `verify`.
#pragma once

#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/workplace.hpp"
#include "storage/catalog.hpp"

namespace ckpt::cli {

// As storage::check_run. Errors: not_found (says what to do), io.
Result<storage::Catalog> read_directory(Workplace& workplace, const std::string& directory);

// The runs that a path means, if they are several or lie below it: the run that it is, and those
// below it, by name. None: it is one run, or a checkpoint, or there are no runs. Errors: io (a
// server that does not answer).
Result<std::vector<std::string>> runs_at(Workplace& workplace, const std::string& directory);

// Refuses to make a run above others, which it would hide from every command that takes a parent of
// runs. `what`: the attempt, for the error.
Status refuse_above_runs(Workplace& workplace, const std::string& what, const std::string& to);

// The directory that a checkpoint lies in, also of `.` and of a link. Empty: there is none.
std::string parent_of(const std::string& path);
// The name of a checkpoint's directory, which a path that ends with `.` or `..` does not have.
std::string name_of(const std::string& path);

// The path without slashes at its end; "/" stays.
std::string without_slash(std::string path);

// Whether the directory around this checkpoint knows that a restore has abandoned it.
bool is_abandoned_at(Workplace& workplace, const std::string& path,
                     const format::Manifest& manifest);

Json to_json(const std::vector<storage::Rejected>& rejected);
// One line for each, or nothing. `directory`: goes before each name; empty: nothing does.
std::string describe(const std::vector<storage::Rejected>& rejected,
                     const std::string& directory = {});
// Returns true if some are damaged, and not merely replaced or another run's.
bool has_trouble(const std::vector<storage::Rejected>& rejected);

}  // namespace ckpt::cli
