// ProgramPath: where the program that runs, or a library that it loaded, lies on disk.
#pragma once

#include <string>

namespace ckpt::os {

// Absolute, links resolved; empty where it cannot be told.
std::string program_directory();
std::string library_directory(const void* address_within);

}  // namespace ckpt::os
