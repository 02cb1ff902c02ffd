// StorageRead: reads a directory of checkpoints, for the commands that show or tend it.
#pragma once

#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/workplace.hpp"
#include "gather/look_through.hpp"
#include "storage/catalog.hpp"

namespace ckpt::cli {

// As storage::check_run. Errors: not_found (says what to do), io.
Result<storage::Catalog> read_directory(Workplace& workplace, const std::string& directory);

// Whether the path is one checkpoint, as far as that can be read. Errors: io (a server that does
// not answer: other questions would wait as long).
Result<bool> is_one_checkpoint(Workplace& workplace, const std::string& path);

// The runs that a path means, if they are several or lie below it: the run that it is, and those
// below it, by name, with the directories that cannot be read and may be some. None: it is one run,
// or there are no runs.
std::vector<std::string> runs_at(Workplace& workplace, const std::string& directory);

// Refuses to write a file of a name into a checkpoint, or over what a run consists of. `what`: the
// attempt, for the error.
Status refuse_in_checkpoint(Workplace& workplace, const std::string& what,
                            const std::string& directory, const std::string& name);

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

// Names the parts that ranks of a checkpoint declared and none of them saved. Errors: those of
// reading the descriptions.
Result<gather::LookedThrough> look_through(Workplace& workplace, const storage::Site& site,
                                           const std::string& name);

Json to_json(const std::vector<storage::Rejected>& rejected);
// One line for each, or nothing. `directory`: goes before each name; empty: nothing does.
std::string describe(const std::vector<storage::Rejected>& rejected,
                     const std::string& directory = {});
// Returns true if some are damaged, and not merely replaced or another run's.
bool has_trouble(const std::vector<storage::Rejected>& rejected);

}  // namespace ckpt::cli
