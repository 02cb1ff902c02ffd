// ProgramPath: where programs lie: the running one, a library that it loaded, or one by its name.
#pragma once

#include <ckpt/result.hpp>
#include <string>

#include "os/environment_copy.hpp"

namespace ckpt::os {

// Absolute, with links resolved; empty if unknown.
std::string program_directory();
std::string library_directory(const void* address_within);

// `program` itself if it has a slash; else the first one of this name in PATH that may be run.
// Errors: not_found.
Result<std::string> find_program(const std::string& program, const EnvironmentCopy& environment);

}  // namespace ckpt::os
