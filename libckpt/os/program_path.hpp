// ProgramPath: the directory of the running program, or of a library that it loaded.
#pragma once

#include <string>

namespace ckpt::os {

// Absolute, with links resolved; empty if unknown.
std::string program_directory();
std::string library_directory(const void* address_within);

}  // namespace ckpt::os
